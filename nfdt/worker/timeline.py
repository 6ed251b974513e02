"""The spans of a worker's lanes (--timeline): wait for an epoch, input, gradient, push, pull. They leave no gap."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from fdt.timeline import SpanRecorder
from nfdt.transport.channel import EpochOver, ParameterServerChannel, Release, WorkerGradient
from nfdt.worker.lane import LaneChannels, Pulled


class LaneSpans:
    """The spans of one worker. Each span of a lane begins where the one before ends."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._at: dict[int, float] = {}  # lane -> end of its last span
        self._epoch: dict[int, int] = {}  # lane -> epoch of the weights that it pulled last, from 1

    def begin(self, lane: int) -> None:
        """Begin the spans of a lane."""
        self._at[lane] = time.time()

    def end(self, lane: int, name: str, at: float) -> None:
        """Add a span that ends at `at`, or where it begins if the clock was set back."""
        start, self._at[lane] = self._at[lane], max(at, self._at[lane])
        self._recorder.add(f"lane {lane}", name, start, self._at[lane], epoch=self._epoch.get(lane, 0))

    def pulled(self, lane: int, name: str, pulled: Pulled) -> Pulled:
        """Add a span that ends with an answer; return the answer."""
        self.end(lane, name, time.time())
        if not isinstance(pulled, (EpochOver, Release)):
            self._epoch[lane] = pulled[0].epoch + 1
        return pulled


class TimedChannels(LaneChannels):
    """LaneChannels that add spans. A push ends when it is sent; the pull is the wait for the answer to it.

    Args:
        channels: As in LaneChannels.
        owned: As in LaneChannels.
        spans: Receives the spans.
        lane: Number of the lane within the worker.
    """

    def __init__(
        self, channels: Sequence[ParameterServerChannel], owned: Sequence[Any], spans: LaneSpans, lane: int
    ) -> None:
        self._spans, self._lane, self._sent = spans, lane, 0.0
        spans.begin(lane)
        super().__init__(channels, owned)

    def ask(self) -> Pulled:
        """Request weights and batches: at the start, and after the end of an epoch."""
        return self._spans.pulled(self._lane, "wait for an epoch", super().ask())

    def end_of_data(self, batch: int) -> Pulled:
        """Report that batch `batch` does not exist; request weights and batches."""
        return self._spans.pulled(self._lane, "pull", super().end_of_data(batch))

    def push(self, gradient: WorkerGradient) -> Pulled:
        """Push a gradient of all variables."""
        pulled = super().push(gradient)
        self._spans.end(self._lane, "push", self._sent)
        return self._spans.pulled(self._lane, "pull", pulled)

    def _pull(self, request: Callable[[], None]) -> Pulled:
        def sent() -> None:
            request()
            self._sent = time.time()

        return super()._pull(sent)


class TimedStep:
    """A GradientStep or LocalSteps that adds spans. The input is the time from a pull to the gradient's start."""

    def __init__(self, step: Any, spans: LaneSpans) -> None:
        self._step, self._spans = step, spans

    def run(self, lane: int, *arguments: Any) -> WorkerGradient:
        """Compute a push."""
        self._spans.end(lane, "input", time.time())
        computed: WorkerGradient = self._step.run(lane, *arguments)
        self._spans.end(lane, "gradient", time.time())
        return computed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
