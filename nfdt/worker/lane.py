"""A lane of a worker: its batches, which are read ahead, its channels to all shards, and an epoch's counters.

With --timeline its spans: wait for an epoch, input, gradient, push, pull. They leave no gap.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from fdt.errors import UserError
from fdt.tensors import numbers
from fdt.timeline import SpanRecorder, trace_time
from fdt.trainable import Trainable, change
from fdt.typing import Array
from nfdt.model.shards import Ownership
from nfdt.transport import EpochOver, Interrupted, ParameterServerChannel, Release, Weights, WorkerGradient


class NoBatch(Exception):
    """The epoch has no batch of the number `args[0]`."""


class BatchReader:
    """One lane's reader of an epoch's batches. It reads one push ahead."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._epoch = self._last = -1
        self._reader: Any = None
        self._asked: dict[tuple[int, int], Future[Any]] = {}  # by epoch and number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def get(self, epoch: int, indices: Sequence[int], ahead: Sequence[int]) -> list[Any]:
        """Return the batches `indices`, and read `ahead` in the background. Raises NoBatch."""
        keys = [(epoch, index) for index in (*indices, *ahead)]
        asked = {key: self._asked.get(key) or self._thread.submit(self._read, *key) for key in keys}
        self._asked = asked
        return [self._result(key) for key in keys[: len(indices)]]

    def _result(self, key: tuple[int, int]) -> Any:
        try:
            return self._asked[key].result()
        except IndexError:
            raise NoBatch(key[1]) from None

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _read(self, epoch: int, index: int) -> Any:
        if epoch != self._epoch or index <= self._last:  # a reader only moves forward
            self._epoch, self._reader = epoch, self._source.reader(epoch)
        self._last = index
        return self._reader(index)


class EpochCounters:
    """A worker's counts, time and metrics of one epoch. The metric variables are the model's own."""

    def __init__(self, trainable: Trainable, first: bool) -> None:
        self._trainable, self._first = trainable, first
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self._trainable.model.reset_metrics()
        self._start = self._trainable.metric_arrays()
        self.steps = self.samples = 0
        self.busy = 0.0  # seconds
        self._pushes = self._staleness = 0  # answered pushes, and the sum of their staleness
        self.logs: Mapping[str, Any] = {}
        self._since: float | None = None

    def begin(self) -> None:
        """Start the clock, unless it runs. Called when the worker has weights for a batch.

        Between the end of an epoch and this call, the client evaluates and runs callbacks.
        """
        if self._since is None:
            self._since = time.monotonic()

    def add_busy(self, seconds: float) -> None:
        """Count seconds of computing."""
        self.busy += seconds

    def add_staleness(self, answer: "Pulled") -> None:
        """Count the staleness of a push, which is in the answer to it unless the epoch has ended."""
        if isinstance(answer, list):
            self._pushes, self._staleness = self._pushes + 1, self._staleness + answer[0].staleness

    @property
    def staleness(self) -> float:
        """The mean staleness of the answered pushes."""
        return self._staleness / self._pushes if self._pushes else 0.0

    def seconds(self) -> float:
        """Return the seconds since `begin`; 0 without it."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def add(self, samples: int, logs: Mapping[str, Any], steps: int = 1) -> None:
        """Count `steps` steps of `samples` samples in total."""
        self.steps += steps
        self.samples += samples
        self.logs = logs

    def counted(self) -> list[Array]:
        """Return the current values of the metric variables."""
        return self._trainable.metric_arrays()

    def take_back(self, counted: list[Array]) -> None:
        """Undo a skipped step: restore the metric variables to `counted`."""
        self._trainable.write_metrics(counted)

    def metrics(self) -> list[Array]:
        """Return the arrays to sum over workers: the first worker's values, the others' changes."""
        arrays = self._trainable.metric_arrays()
        return arrays if self._first else [change(a, s) for a, s in zip(arrays, self._start, strict=True)]

    def floats(self) -> dict[str, float]:
        """Return the scalar logs as numbers."""
        return numbers(self.logs)


PATIENCE_S = 600.0  # time for the start or restoration of a server; the engine ends workers that wait in vain
LOST_S = 1.0  # time to open an ended session again, where no server is restored
RETRY_S = 0.1
Pulled = list[Weights] | EpochOver | Release  # the weights of each shard
Result = TypeVar("Result")


class LaneChannels:
    """One lane's channels to all shards.

    A push goes to the other shards before shard 0. Shard 0's answer decides whether they answer. If a session ends, all
    sessions restart and the exchange is repeated whole. A server that has the push already recognises its number; a
    restored server ignores it. Methods raise UserError after `patience_s` seconds of retries.
    """

    def __init__(
        self, channels: Sequence[ParameterServerChannel], owned: Sequence[Ownership], patience_s: float = PATIENCE_S
    ) -> None:
        self._first, *self._followers = self.channels = channels
        self._owned, self._patience_s = owned, patience_s
        self._pushes = 0
        self._open = False  # whether every channel is open
        self._retried(lambda: None)

    def ask(self) -> Pulled:
        """Request weights and batches."""
        return self._retried(lambda: self._pull(self._first.ask))

    def end_of_data(self, batch: int) -> Pulled:
        """Report that batch `batch` does not exist; request weights and batches."""
        return self._retried(lambda: self._pull(lambda: self._first.end_of_data(batch)))

    def push(self, gradient: WorkerGradient) -> Pulled:
        """Push a gradient of all variables. The answer is that of the next pull."""
        self._pushes += 1
        return self._retried(lambda: self._push(self._pushes, [_part(gradient, shard) for shard in self._owned]))

    def close(self) -> None:
        """End all sessions."""
        for channel in self.channels:
            channel.close()

    def _push(self, number: int, parts: Sequence[WorkerGradient]) -> Pulled:
        for channel, part in zip(self._followers, parts[1:], strict=True):
            channel.push(number, part)
            if channel.answer() is not None:
                raise RuntimeError("a server other than the first did not store a push")
        return self._pull(lambda: self._first.push(number, parts[0]))

    def _pull(self, request: Callable[[], None]) -> Pulled:
        """Send `request` to shard 0, and let the other shards answer as it does."""
        request()
        answer = self._first.answer()
        if not isinstance(answer, Weights):
            assert answer is not None, "shard 0 stages nothing"
            return answer
        pulled = [answer]
        for channel in self._followers:
            channel.ask(answer.pull)
            part = channel.answer()
            assert isinstance(part, Weights), "a shard that follows answers as shard 0 does"
            pulled.append(part)
        return pulled

    def _retried(self, exchange: Callable[[], Result]) -> Result:
        until = float("inf")
        while True:
            try:
                for channel in () if self._open else self.channels:
                    channel.open()
                self._open = True
                return exchange()
            except Interrupted as error:
                until = min(until, time.monotonic() + self._patience_s)
                if time.monotonic() > until:
                    raise UserError(f"{error}; check the network between the hosts") from None
                self._open = False
                time.sleep(RETRY_S)


def _part(gradient: WorkerGradient, shard: Ownership) -> WorkerGradient:
    """Return the part of a gradient of all variables that belongs to one shard."""
    found = {i: number for number, i in enumerate(gradient.changed)}
    mine = [(i, found[other]) for i, other in enumerate(shard.others) if other in found]
    changes, decays = [gradient.changes[n] for _, n in mine], [gradient.decays[n] for _, n in mine]
    tensors = [gradient.gradient[i] for i in shard.trainable]
    return replace(gradient, gradient=tensors, changes=changes, changed=[i for i, _ in mine], decays=decays)


class LaneSpans:
    """The spans of one worker. Each span of a lane begins where the one before ends."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._at: dict[int, float] = {}  # lane -> end of its last span
        self._epoch: dict[int, int] = {}  # lane -> epoch of the weights that it pulled last, from 1

    def begin(self, lane: int) -> None:
        """Begin the spans of a lane."""
        self._at[lane] = trace_time()

    def end(self, lane: int, name: str, at: float) -> None:
        """Add a span that ends at `at`, or where it begins if the clock was set back."""
        start, self._at[lane] = self._at[lane], max(at, self._at[lane])
        self._recorder.add(f"lane {lane}", name, start, self._at[lane], epoch=self._epoch.get(lane, 0))

    def pulled(self, lane: int, name: str, pulled: Pulled) -> Pulled:
        """Add a span that ends with an answer; return the answer."""
        self.end(lane, name, trace_time())
        if not isinstance(pulled, (EpochOver, Release)):
            self._epoch[lane] = pulled[0].epoch + 1
        return pulled


class TimedChannels(LaneChannels):
    """LaneChannels that add spans. A push ends when it is sent; the pull is the wait for the answer to it.

    Args:
        channels: As in LaneChannels.
        owned: As in LaneChannels.
        patience_s: As in LaneChannels.
        spans: Receives the spans.
        lane: Number of the lane within the worker.
    """

    def __init__(
        self,
        channels: Sequence[ParameterServerChannel],
        owned: Sequence[Any],
        patience_s: float,
        spans: LaneSpans,
        lane: int,
    ) -> None:
        self._spans, self._lane, self._sent = spans, lane, 0.0
        spans.begin(lane)
        super().__init__(channels, owned, patience_s)

    def ask(self) -> Pulled:
        """Request weights and batches: at the start, and after the end of an epoch."""
        return self._spans.pulled(self._lane, "wait for an epoch", super().ask())

    def end_of_data(self, batch: int) -> Pulled:
        return self._spans.pulled(self._lane, "pull", super().end_of_data(batch))

    def push(self, gradient: WorkerGradient) -> Pulled:
        pulled = super().push(gradient)
        self._spans.end(self._lane, "push", self._sent)
        return self._spans.pulled(self._lane, "pull", pulled)

    def _pull(self, request: Callable[[], None]) -> Pulled:
        def sent() -> None:
            request()
            self._sent = trace_time()

        return super()._pull(sent)


class TimedStep:
    """A GradientStep or LocalSteps that adds spans. The input is the time from a pull to the gradient's start."""

    def __init__(self, step: Any, spans: LaneSpans) -> None:
        self._step, self._spans = step, spans

    def run(self, lane: int, *arguments: Any) -> WorkerGradient:
        """Compute a push."""
        self._spans.end(lane, "input", trace_time())
        computed: WorkerGradient = self._step.run(lane, *arguments)
        self._spans.end(lane, "gradient", trace_time())
        return computed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
