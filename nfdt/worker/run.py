"""One job on one worker: lanes that pull, compute and push, and the worker's reports."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fdt.job import BatchHooks, JobSpec
from fdt.keras.variables import shifted_seed, tensor_variable
from fdt.network import Pacer, pacer_of
from fdt.report import quantity
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress
from fdt.service.member import Member, open_data, open_feeds
from fdt.tensors import put_logs
from fdt.timeline import SpanRecorder
from fdt.trainable import Trainable
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.settings import algorithm_name, algorithm_of, lanes_of
from nfdt.model.shards import put_seeds
from nfdt.options import Options, approximation
from nfdt.transport import ChannelFactory, EpochOver, Release, Weights, WorkerGradient
from nfdt.worker.lane import (
    LOST_S,
    PATIENCE_S,
    BatchReader,
    EpochCounters,
    LaneChannels,
    LaneSpans,
    NoBatch,
    Pulled,
    TimedChannels,
    TimedStep,
)
from nfdt.worker.step import GradientStep, ownerships, samples_of

PROGRESS_S = 0.2


class PacedStep:
    """A GradientStep or LocalSteps that takes the time of the emulated node."""

    def __init__(self, step: Any, pacer: Pacer) -> None:
        self._step, self._pacer = step, pacer

    def run(self, lane: int, batches: Sequence[Any], *arguments: Any) -> Any:
        started = time.monotonic()
        result = self._step.run(lane, batches, *arguments)
        self._pacer.hold(started, len(batches))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


class WorkerJob:
    """Lanes of one worker in one job.

    Args:
        spec: The job.
        trainable: The built model, with the job's state loaded.
        step: The compiled gradient of the model.
        channels: Connects a lane to all shards.
        shards: Number of shards.
        member: Connection to the engine.
        send: Sends an event to the engine.
        failed: Reports an error to the engine.
        moved: Bytes sent and received before this job.
        incarnation: Number of replacements of this rank's worker in this job.
    """

    def __init__(
        self,
        spec: JobSpec,
        trainable: Trainable,
        step: GradientStep,
        channels: ChannelFactory,
        shards: int,
        member: Member,
        send: Callable[[Event], None],
        failed: Callable[[Exception], None],
        moved: tuple[int, int] = (0, 0),
        incarnation: int = 0,
    ) -> None:
        self._spec, self._trainable, self._member = spec, trainable, member
        self._send, self._failed, self._incarnation = send, failed, incarnation
        self._options = Options.read(spec.options)
        self._owned = ownerships(trainable, shards)
        self._feeds = open_feeds(spec, member, lambda wanted: self._send(Event(feed_wanted=wanted)))
        rule = algorithm_of(self._options, trainable.model.optimizer, trainable.trainable)
        self.algorithm = algorithm_name(self._options, trainable.model.optimizer, trainable.trainable)
        pacer = pacer_of(member.rank, spec.seed)
        self._step: Any = step.of(rule) if pacer is None else PacedStep(step.of(rule), pacer)
        self._lanes = lanes_of(self._options, rule, member.size, fed=bool(self._feeds))
        # All readers of a pipeline share its position.
        self._sources = [open_data(spec, spec.data, member.blobs, self._feeds) for _ in range(self._lanes)]
        self.steps: int | None = self._sources[0].steps
        lanes = range(member.rank * self._lanes, (member.rank + 1) * self._lanes)
        self._channels = self._connect([channels(n, self.steps, self._owned) for n in lanes])
        self._tally = EpochCounters(trainable, member.rank == 0)
        self._moved_before, self._moved_at_epoch, self._moved_at_report = moved, moved, moved
        self._computing = threading.Lock()
        self._all_ended, self._ends = threading.Condition(), dict.fromkeys(range(self._lanes), (0, -1))
        self._counted, self._reported = -1, 0.0  # the epoch of the counters; a time
        self._added_up = step.metric_states if member.size > 1 or member.rank else []  # with other workers'
        self._lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        self._threads: list[threading.Thread] = []
        self._finishing = False
        self._vary_seeds()
        self._step.trace(self._sources[0].element_spec, self._owned)
        self.notes = [note for note in self._find_notes(rule, step) if note]

    def start(self) -> None:
        """Start one thread per lane."""
        self._threads = [threading.Thread(target=self._lane, args=(n,), daemon=True) for n in range(self._lanes)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """End the lanes after the servers release them. A lane that waits for a batch ends with an ignored error."""
        self._finishing = True
        for feed in self._feeds.values():
            feed.close()
        for thread in self._threads:
            thread.join()

    # -- the loop --------------------------------------------------------------------------------------------

    def _lane(self, lane: int) -> None:
        channels, batches = self._channels[lane], BatchReader(self._sources[lane])
        try:
            pulled = channels.ask()
            while not isinstance(pulled, Release):
                pulled = self._next(lane, batches, pulled)
        except Exception as error:
            if not self._finishing:
                self._failed(error)
        finally:
            batches.close()
            channels.close()

    def _next(self, lane: int, batches: BatchReader, pulled: list[Weights] | EpochOver) -> Pulled:
        channels = self._channels[lane]
        if isinstance(pulled, EpochOver):
            self._end(lane, pulled)
            return channels.ask()
        weights = pulled[0]
        self._count(weights.epoch)
        self._tally.begin()
        try:
            given = batches.get(weights.epoch, weights.batches, weights.ahead)
        except NoBatch as end:
            return channels.end_of_data(end.args[0])
        answer = channels.push(self._train(lane, pulled, given))
        self._tally.add_staleness(answer)
        return answer

    def _end(self, lane: int, over: EpochOver) -> None:
        """Report an epoch when every lane has its end; wait until then, or until a restored server answers a lane.

        Restored servers send ends again to all lanes, of which some may have had none before.
        """
        end = over.generation, over.epoch
        with self._all_ended:
            self._ends[lane] = end
            if min(self._ends.values()) == end:
                self._report_epoch(over)
            self._all_ended.notify_all()
            self._all_ended.wait_for(lambda: min(self._ends.values()) >= end or max(self._ends.values())[0] > end[0])

    def _count(self, epoch: int) -> None:
        """Start to count `epoch`. One that restored servers repeat is counted on, whether it was reported or not."""
        if epoch <= self._counted:
            return
        with self._computing:
            if epoch > self._counted:
                self._counted, self._moved_at_epoch = epoch, self._moved_at_report
                self._tally.reset()

    def _train(self, lane: int, pulled: list[Weights], batches: list[Any]) -> WorkerGradient:
        samples = sum(samples_of(batch) for batch in batches)
        skips = self._options.on_nan == "skip"
        with self._computing:
            start = time.monotonic()
            counted = self._tally.counted() if skips else []
            computed: WorkerGradient = self._step.run(lane, batches, self._owned, pulled)
            for state in self._added_up:
                state.check()
            if computed.finite or not skips:
                self._tally.add(samples, computed.logs, len(batches))
            else:
                self._tally.take_back(counted)
                absent = [None] * len(computed.gradient)  # nothing to compress, so the residuals stay as they are
                computed = replace(computed, gradient=absent, changes=(), changed=(), decays=())
            seconds = time.monotonic() - start
            self._tally.add_busy(seconds)
            logs = self._tally.floats() if self._lock_step else {}
            metrics = self._member.blobs.put_arrays(self._tally.metrics()) if self._lock_step else None
            self._report_progress(pulled[0].epoch)
        computed = replace(computed, samples=samples, seconds=seconds, batches=pulled[0].batches)
        return replace(computed, logs=logs, metrics=metrics)

    # -- reports ---------------------------------------------------------------------------------------------

    def _report_progress(self, epoch: int) -> None:
        now = time.monotonic()
        if now - self._reported < PROGRESS_S:
            return
        self._reported = now
        tally = self._tally
        progress = Progress(epoch=epoch, step=tally.steps, samples=tally.samples, logs=tally.floats())
        progress.bytes_sent, progress.bytes_received = self.moved()
        progress.busy_seconds, progress.staleness = tally.busy, tally.staleness
        self._send(Event(progress=progress))

    def _report_epoch(self, over: EpochOver) -> None:
        self._count(over.epoch)
        tally, before = self._tally, self._moved_at_epoch
        self._moved_at_report = sent, received = self.moved()
        end = EpochEnd(
            epoch=over.epoch,
            generation=over.generation,
            steps=tally.steps,
            samples=tally.samples,
            metrics=self._member.blobs.put_arrays(tally.metrics()),
            seconds=tally.seconds(),
            busy_seconds=tally.busy,
            staleness=tally.staleness,
            bytes_sent=sent - before[0],
            bytes_received=received - before[1],
            seeds=None if self._member.rank else put_seeds(self._trainable, self._member.blobs),
        )
        put_logs(end, tally.floats())
        self._send(Event(epoch_end=end))

    def moved(self) -> tuple[int, int]:
        """Return the bytes sent and received since the member started."""
        links = [link for channels in self._channels for link in channels.channels]
        sent, received = self._moved_before
        return sent + sum(link.bytes_sent for link in links), received + sum(link.bytes_received for link in links)

    # -- preparation -----------------------------------------------------------------------------------------

    def _connect(self, shards: list[Any]) -> list[LaneChannels]:
        """Return the channels of each lane. `shards`: by lane, a channel to each shard."""
        patience_s = PATIENCE_S if self._options.checkpoint_s else LOST_S  # does a server that is gone come again?
        if not self._options.timeline:
            return [LaneChannels(each, self._owned, patience_s) for each in shards]
        recorder = SpanRecorder(f"worker {self._member.rank}", self._send)
        spans, self._send = LaneSpans(recorder), recorder.send
        self._step = TimedStep(self._step, spans)
        return [TimedChannels(each, self._owned, patience_s, spans, lane) for lane, each in enumerate(shards)]

    def _find_notes(self, rule: AsyncAlgorithm, step: GradientStep) -> Iterator[str]:
        alone, found = self._member.size * self._lanes == 1, step.found
        yield rule.note or approximation(self.algorithm, self._member.size, exact_alone=alone and rule.exact_alone)
        if step.added and not alone:
            yield (
                f"the training step changes {step.added[0]!r}, and the server adds up all workers' changes: right "
                "for a sum or an average, wrong for a value that each step replaces"
            )
        if found is not None and found.reads:
            yield (
                f"the training step reads {', '.join(map(repr, found.reads))} after the update, and workers have the "
                "old value, because the server updates later: numbers are not those of one machine; use hfdt run"
            )
        if found is not None and found.adds_rows and (alone or rule.waits):
            yield (
                "nfdt adds up the gradients of an embedding's repeated rows, and on one machine this optimizer applies "
                "each of them alone: numbers are not those of one machine; use hfdt run"
            )
        if (self._trainable.model.steps_per_execution or 1) > 1:
            yield "steps_per_execution is not used by nfdt: workers push after each step"
        if self.steps and self.steps < self._member.size:
            yield (
                f"an epoch has {quantity(self.steps, 'batch')} for {self._member.size} workers, which take "
                "whole batches, so some have nothing to do; give fit a smaller batch_size, or use hfdt run, which "
                "divides batches"
            )

    def _vary_seeds(self) -> None:
        """Give each worker other random numbers. Worker 0 keeps the script's own."""
        for seed in self._trainable.seeds:
            variable = tensor_variable(seed)
            variable.assign(shifted_seed(variable, self._member.rank + (self._incarnation << 16)))
