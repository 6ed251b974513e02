"""One job on one worker: lanes that pull, compute and push, and the worker's reports."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fdt.blobs import LocalBlobs
from fdt.data import Feed, open_source
from fdt.job import BatchHooks, FeedData, JobSpec
from fdt.keras.variables import shifted_seed, tensor_variable
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress
from fdt.service.member import Member
from fdt.trainable import Trainable
from nfdt.options import Options, lanes_of
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.job import layout_of, rule_of
from nfdt.server.shard_service import ShardService
from nfdt.transport.channel import LaneChannels, ShardChannel
from nfdt.transport.local_channel import LocalChannel
from nfdt.worker.epoch_counters import EpochCounters
from nfdt.worker.pacing import paced
from nfdt.worker.step import GradientStep, ownerships, samples_of, split

PROGRESS_S = 0.2


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
        return self._reader.read(index)


class WorkerJob:
    """Lanes of one worker in one job.

    Args:
        spec: The job.
        trainable: The built model, with the job's state loaded.
        step: The compiled gradient of the model.
        servers: Address of each shard.
        member: Connection to the engine.
        send: Sends an event to the engine.
        failed: Reports an error to the engine.
        moved: Bytes sent and received before this job.
        shard_service: The server's, if it runs in this process.
        incarnation: Number of replacements of this rank's worker in this job.
    """

    def __init__(
        self,
        spec: JobSpec,
        trainable: Trainable,
        step: GradientStep,
        servers: list[str],
        member: Member,
        send: Callable[[Event], None],
        failed: Callable[[Exception], None],
        moved: tuple[int, int] = (0, 0),
        shard_service: ShardService | None = None,
        incarnation: int = 0,
    ) -> None:
        self._spec, self._trainable, self._member = spec, trainable, member
        self._send, self._failed, self._shard_service, self._incarnation = send, failed, shard_service, incarnation
        self._options = Options.read(spec.options)
        self._owned = ownerships(trainable, len(servers))
        self._feed = self._open_feed()
        self._source = open_source(
            spec.data,
            spec.fit,
            member.blobs,
            spec.seed,
            training=True,
            options=spec.options,
            feed=self._feed,
            flavor=spec.program.flavor,
        )
        self.steps: int | None = self._source.steps
        rule = rule_of(self._options, trainable.model.optimizer, trainable.trainable)
        self.notes = [note for note in (rule.note, *self._find_notes()) if note]
        self._step = paced(step.of(rule), member.rank, spec.seed)
        self._lanes = lanes_of(self._options, rule, member.size, fed=self._feed is not None)
        self._couriers = [self._channels(lane, servers) for lane in range(self._lanes)]
        self._tally = EpochCounters(trainable, member.rank == 0)
        self._moved_before, self._moved_at_epoch = moved, moved
        self._computing = threading.Lock()
        self._together = threading.Barrier(self._lanes, self._report_epoch)
        self._over = 0
        self._reported = 0.0
        self._lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        self._threads: list[threading.Thread] = []
        self._finishing = False
        self._vary_seeds()
        self._step.trace(self._source.element_spec, self._owned)

    def start(self) -> None:
        """Start one thread per lane."""
        for lane in range(self._lanes):
            self._threads.append(threading.Thread(target=self._lane, args=(lane,), daemon=True))
            self._threads[-1].start()

    def finish(self) -> None:
        """End the lanes after the servers release them. A lane that waits for a batch ends with an ignored error."""
        self._finishing = True
        if self._feed is not None:
            self._feed.close()
        for thread in self._threads:
            thread.join()

    # -- the loop --------------------------------------------------------------------------------------------

    def _lane(self, lane: int) -> None:
        channels, batches = self._couriers[lane], BatchReader(self._source)
        try:
            answer = channels.ask()
            while not answer.HasField("released"):
                answer = self._next(lane, batches, answer)
        except Exception as error:
            if not self._finishing:
                self._failed(error)
        finally:
            batches.close()
            channels.close()

    def _next(self, lane: int, batches: BatchReader, answer: pb.ToWorker) -> pb.ToWorker:
        channels = self._couriers[lane]
        if answer.HasField("epoch_over"):
            self._over = answer.epoch_over.epoch
            self._together.wait()
            return channels.ask()
        weights = answer.weights
        try:
            given = batches.get(weights.epoch, weights.batches, weights.ahead)
        except NoBatch as end:
            return channels.end_of_data(end.args[0])
        return self._train(lane, weights, given)

    def _train(self, lane: int, weights: pb.Weights, batches: list[Any]) -> pb.ToWorker:
        channels, samples = self._couriers[lane], sum(samples_of(batch) for batch in batches)
        skips = self._options.on_nan == "skip"
        with self._computing:
            start = time.monotonic()
            counted = self._tally.counted() if skips else []
            computed = self._step.run(lane, batches, self._owned, channels.pulled())
            if computed.finite or not skips:
                self._tally.add(samples, computed.logs, len(batches))
            else:
                self._tally.take_back(counted)
            seconds = time.monotonic() - start
            self._tally.busy += seconds
            message = pb.Push(batches=weights.batches, samples=samples, seconds=seconds)
            message.not_finite = not computed.finite
            if self._lock_step:
                message.logs.update(self._tally.floats())
                message.metrics.CopyFrom(self._member.blobs.put_arrays(self._tally.metrics()))
            self._report_progress(weights.epoch)
        return channels.push(message, split(self._owned, computed))

    # -- reports ---------------------------------------------------------------------------------------------

    def _report_progress(self, epoch: int) -> None:
        now = time.monotonic()
        if now - self._reported < PROGRESS_S:
            return
        self._reported = now
        sent, received = self.moved()
        tally = self._tally
        progress = Progress(
            epoch=epoch, step=tally.steps, samples=tally.samples, bytes_sent=sent, bytes_received=received
        )
        progress.logs.update(tally.floats())
        self._send(Event(progress=progress))

    def _report_epoch(self) -> None:
        """Report the epoch. One lane calls this while the others wait."""
        tally = self._tally
        sent, received = self.moved()
        before, self._moved_at_epoch = self._moved_at_epoch, (sent, received)
        end = EpochEnd(
            epoch=self._over,
            steps=tally.steps,
            samples=tally.samples,
            logs=tally.floats(),
            metrics=self._member.blobs.put_arrays(tally.metrics()),
            seconds=time.monotonic() - tally.since,
            busy_seconds=tally.busy,
            bytes_sent=sent - before[0],
            bytes_received=received - before[1],
        )
        self._send(Event(epoch_end=end))
        tally.reset()

    def moved(self) -> tuple[int, int]:
        """Return the bytes sent and received since the member started."""
        links = [link for channels in self._couriers for link in channels.channels]
        sent, received = self._moved_before
        return sent + sum(link.bytes_sent for link in links), received + sum(link.bytes_received for link in links)

    # -- preparation -----------------------------------------------------------------------------------------

    def _channels(self, lane: int, servers: list[str]) -> LaneChannels:
        number = self._member.rank * self._lanes + lane
        steps = -1 if self.steps is None else self.steps
        hello = pb.Hello(job=self._spec.id, worker=number, steps=steps, incarnation=self._incarnation)
        if self._shard_service is not None:
            return LaneChannels([LocalChannel(self._shard_service, hello)])
        directory = self._directory()
        return LaneChannels(
            [
                ShardChannel(address, self._member.token, hello, layout_of(owned.part), directory)
                for address, owned in zip(servers, self._owned, strict=True)
            ]
        )

    def _directory(self) -> Path | None:
        blobs = self._member.blobs
        return blobs.directory if self._options.channel != "grpc" and isinstance(blobs, LocalBlobs) else None

    def _open_feed(self) -> Feed | None:
        data = self._spec.data
        if not isinstance(data, FeedData):
            return None
        feed = Feed(data.name, self._member.blobs, lambda wanted: self._send(Event(feed_wanted=wanted)))
        self._member.on_feed = feed.offer
        return feed

    def _find_notes(self) -> Iterator[str]:
        if (self._trainable.model.steps_per_execution or 1) > 1:
            yield "steps_per_execution is not used by nfdt: workers push after each step"
        if self.steps and self.steps < self._member.size:
            yield (
                f"an epoch has {self.steps} batches for {self._member.size} workers, which take whole batches, so some "
                "have nothing to do; give fit a smaller batch_size, or use hfdt run, which divides batches"
            )

    def _vary_seeds(self) -> None:
        """Give each worker other random numbers. Worker 0 keeps the script's own."""
        for seed in self._trainable.seeds:
            variable = tensor_variable(seed)
            variable.assign(shifted_seed(variable, self._member.rank + (self._incarnation << 16)))
