"""One job on the simulated clock. It takes the commands of a worker that hosts its server, and uses no threads.

The server is the real one: shard service, scheduler, algorithm state, algorithm and compiled applier. All workers share
one model and its compiled step, because they compute one after another in real time. The model's metric variables sum
over them, in lock step over the batches that were pushed. So the shard service sees the lanes of one worker. Random
layers draw from one stream, in the order of events.

Memory beyond two models: the workers' weights, each a reference to the server's tensors of that version (workers at one
version share them, and so does an algorithm's copy at pull); a gradient during its transfer; the algorithm's state.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import simpy

from fdt.data import open_source
from fdt.errors import UserError
from fdt.job import BatchHooks, State
from fdt.network import Cluster
from fdt.network.transfers import run_until
from fdt.rpc.session_pb2 import Commit, EpochEnd, Event, Progress
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.tensors import put_logs
from fdt.trainable import change
from fdt.typing import Array
from nfdt.model import add_up
from nfdt.model.settings import algorithm_name
from nfdt.model.shards import put_seeds
from nfdt.server.job import ServedJob
from nfdt.server.shard_service import NOT_BEGUN, ShardService
from nfdt.simulator import EpochRecord, FitRecord, Point, TimedApplier, WallTimes
from nfdt.simulator.workers import SharedBatches, SimulatedChannel, SimulatedWorkers
from nfdt.transport import Weights, WorkerGradient
from nfdt.worker.lane import EpochCounters
from nfdt.worker.step import GradientStep, ownerships, samples_of

POINTS = 50  # points of the curve per epoch
POINTS_EVERY = 20  # batches between two points, if the length of an epoch is unknown

OnExchange = Callable[[float, str, int, int], None]


class SimulatedJob:
    """One simulated job.

    Args:
        job: The job as its server has it.
        step: The compiled gradient of the model.
        trainable: The workers' model.
        cluster: Nodes and links.
        send: Sends an event to the engine.
        begin_s: Simulated time at the start of the job, in seconds.
        fit: Number of the job.
        feed: Batches that the client draws, if it does.
        on_exchange: Called with (seconds, kind, worker, tau) for each call of the algorithm.

    Attributes:
        steps: Batches in an epoch; None while unknown.
    """

    def __init__(
        self,
        job: ServedJob,
        step: GradientStep,
        trainable: Any,
        cluster: Cluster,
        send: Callable[[Event], None],
        *,
        begin_s: float = 0.0,
        fit: int = 0,
        feed: Any = None,
        on_exchange: OnExchange = lambda seconds, kind, worker, tau: None,
    ) -> None:
        self._job, self._step, self._trainable, self._send = job, step.of(job.rule), trainable, send
        self._owned = ownerships(trainable, 1)
        self._batches, self.steps = self._open(feed)
        lanes = job.lanes * len(cluster.workers)
        self._walls = WallTimes()
        self._env, self._begin_s, self._on_exchange = simpy.Environment(begin_s), begin_s, on_exchange
        self._fleet = SimulatedWorkers(self._env, cluster, job.lanes, job.spec.seed, self, fit)
        applier = TimedApplier(job.applier, self._walls, self._called)
        absent = self._fleet.absent
        self._shard_service = ShardService(job, 1, self._receive_event, lanes=lanes, applier=applier, absent=absent)
        sizes: dict[tuple[Any, ...], int] = {}
        self._channels = [
            SimulatedChannel(self._env, self._shard_service, lane, self.steps, sizes) for lane in range(lanes)
        ]
        self._tally = EpochCounters(trainable, first=True)
        self._lock_step = job.spec.fit.batch_hooks != BatchHooks.NONE
        self._pushes = dict.fromkeys(range(lanes), 0)
        # By lane that may leave, or in lock step by lane: the samples, batches and metric changes of a push to come.
        self._unpushed: dict[int, tuple[int, int, list[Array]]] = {}
        self._done = self._samples = 0
        self._received = self._received_before = 0  # pushes that the algorithm received, and those before this epoch
        self._moved_before = 0, 0  # bytes before this epoch
        self.record = FitRecord(algorithm_name(job.options, trainable.model.optimizer, trainable.trainable))
        self._pause = self._env.event()
        self._over: Event | None = None
        self._enroll()

    @property
    def now_s(self) -> float:
        """Simulated time in seconds."""
        return float(self._env.now)

    # -- commands --------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, changed: State, begin: Commit = NOT_BEGUN) -> None:
        """Start an epoch."""
        self._go(lambda: self._shard_service.start_epoch(epoch, changed, begin))

    def step(self, changed: State) -> None:
        """Lock step: load the state that the client changed, and apply the next push."""
        self._go(lambda: self._shard_service.step(changed))

    def stop_epoch(self) -> None:
        """End the epoch at the client's request."""
        self._go(self._shard_service.stop_epoch)

    def _go(self, command: Callable[[], None]) -> None:
        """Execute `command` and run the simulation until the client gets an event."""
        self._pause = self._env.event()
        with self._walls.counted("total_s"):
            command()
            if not run_until(self._env, self._pause):
                raise UserError(
                    f"the simulation stops at {self.now_s:.3g} simulated seconds: all nodes of the cluster have left, "
                    "or wait for one that has"
                )
        if self._over is not None:
            self._end_epoch(self._over)

    def _enroll(self) -> None:
        for channel in self._channels:
            channel.open()
        for lane in self._fleet.gone:
            self._shard_service.leave(lane)
        self._fleet.start()

    def _open(self, feed: Any) -> tuple[SharedBatches, int | None]:
        spec, blobs = self._job.spec, self._job.blobs
        how = {"options": spec.options, "feed": feed, "flavor": spec.program.flavor}
        source = open_source(spec.data, spec.fit, blobs, spec.seed, training=True, **how)
        return SharedBatches(source), source.steps

    # -- SimulatedServer, for the lanes (workers.py) -------------------------------------------------------

    def channel(self, lane: int) -> SimulatedChannel:
        return self._channels[lane]

    def leave(self, lane: int) -> None:
        """Remove a lane. Another one computes, and counts, the batches that it has not pushed."""
        samples, steps, changes = self._unpushed.pop(lane, (0, 0, []))
        if steps and not self._lock_step:
            self._tally.add(-samples, self._tally.logs, -steps)
            self._tally.take_back([change(now, part) for now, part in zip(self._tally.counted(), changes, strict=True)])
        self._shard_service.leave(lane)

    def taken(self, lane: int) -> None:
        self._batches.drop(lane)

    def missing(self, weights: Weights) -> int | None:
        for batch in weights.batches if self.steps is None else ():
            try:
                self._batches.draw_ahead(weights.epoch, batch)
            except IndexError:
                return batch
        return None

    def compute(self, lane: int, weights: Weights, seconds: float) -> WorkerGradient:
        """Return the gradient. In lock step its batches are counted when it is pushed."""
        before = self._tally.counted() if self._lock_step or self._fleet.leaves(lane) else None
        with self._walls.counted("gradient_s"):
            batches = self._batches.take(lane, weights.epoch, weights.batches)
            computed: WorkerGradient = self._step.run(lane, batches, self._owned, [weights])
        samples = sum(samples_of(batch) for batch in batches)
        if before is not None:
            changes = [change(now, start) for now, start in zip(self._tally.counted(), before, strict=True)]
            self._unpushed[lane] = samples, len(batches), changes
        if before is None or not self._lock_step:
            self._tally.add(samples, computed.logs, len(batches))
        else:
            self._tally.take_back(before)
        logs = computed.logs if self._lock_step else {}
        return replace(computed, samples=samples, seconds=seconds, batches=weights.batches, logs=logs)

    def _counted(self, lane: int, gradient: WorkerGradient) -> WorkerGradient:
        """Lock step: count a push; return it with the logs and metric states of all pushes of its epoch so far."""
        samples, steps, changes = self._unpushed.pop(lane, (0, 0, []))
        if steps:
            model = self._trainable.model
            self._tally.take_back(add_up([self._tally.counted(), changes]))
            self._tally.add(samples, self._trainable.flavor.result(model, gradient.logs), steps)
        return replace(gradient, logs=self._tally.floats(), metrics=self._job.blobs.put_arrays(self._tally.metrics()))

    def push(self, lane: int, epoch: int, gradient: WorkerGradient) -> None:
        if self._lock_step:
            gradient = self._counted(lane, gradient)
        self._unpushed.pop(lane, None)
        self._pushes[lane] += 1
        before, self._done = self._done, self._done + len(gradient.batches)
        self._samples += gradient.samples
        self._channels[lane].push(self._pushes[lane], gradient)
        every = max(1, (self.steps or POINTS * POINTS_EVERY) // POINTS)
        if before // every < self._done // every:
            self._report(epoch)

    # -- reports ---------------------------------------------------------------------------------------------

    def _receive_event(self, event: Event) -> None:
        """Handle an event of the shard service for the engine. The simulated clock stops until the client answers."""
        if event.HasField("epoch_end"):
            self._over = event
        else:
            self._send(event)
            if event.step_end.last:  # the client does not answer: the epoch's end follows
                return
        if not self._pause.triggered:
            self._pause.succeed()

    def _called(self, kind: str, worker: int, tau: int) -> None:
        if kind in ("push", "hold"):
            self._received += 1
            self.record.staleness[tau] = self.record.staleness.get(tau, 0) + 1
        self._on_exchange(self.now_s - self._begin_s, kind, worker, tau)

    def _end_epoch(self, event: Event) -> None:
        """Report the end of an epoch: first the server's report, then that of the workers."""
        end, walls, tally = event.epoch_end, self._walls, self._tally
        end.extra["simulated_s"] = self.now_s
        self._send(event)
        sent, received = self._moved()
        mine = EpochEnd(epoch=end.epoch, steps=end.steps, samples=end.samples)
        put_logs(mine, tally.floats())
        mine.seconds, mine.bytes_sent, mine.bytes_received = walls.total_s, sent, received
        mine.metrics.CopyFrom(self._job.blobs.put_arrays(tally.metrics()))
        mine.seeds.CopyFrom(put_seeds(self._trainable, self._job.blobs) or BlobRef())
        self._send(Event(epoch_end=mine))
        self.record.epochs.append(
            EpochRecord(
                epoch=end.epoch,
                steps=end.steps,
                pushes=self._received - self._received_before,
                samples=end.samples,
                simulated_s=self.now_s - self._begin_s,
                bytes_sent=sent,
                bytes_received=received,
                **vars(walls),
            )
        )
        self.record.links.update(zip(self._fleet.topology.names, self._fleet.transfers.sent_bytes, strict=True))
        tally.reset()
        self._unpushed.clear()
        self._over, before, self._received_before = None, self._moved_before, self._received
        self._moved_before = before[0] + sent, before[1] + received
        walls.reset()

    def _moved(self) -> tuple[int, int]:
        """Return the bytes sent and received in this epoch."""
        sent, received = self._moved_before
        channels = self._channels
        return sum(c.bytes_sent for c in channels) - sent, sum(c.bytes_received for c in channels) - received

    def _report(self, epoch: int) -> None:
        tally = self._tally
        logs = tally.floats()
        elapsed_s = self.now_s - self._begin_s
        self.record.points.append(Point(epoch, self._received, self._samples, tally.samples, elapsed_s, logs))
        progress = Progress(epoch=epoch, step=tally.steps, samples=tally.samples)
        progress.bytes_sent, progress.bytes_received = self._moved()
        progress.logs.update({**logs, "simulated_s": self.now_s})
        self._send(Event(progress=progress))
