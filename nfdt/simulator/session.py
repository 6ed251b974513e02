"""One job on the simulated clock. It takes the commands of a worker that hosts its server, and uses no threads.

The server is the real one: shard service, scheduler, algorithm state, algorithm and compiled applier. All workers share
one model and its compiled step, because they compute one after another in real time. The model's metric variables sum
over them. So the shard service sees the lanes of one worker. Random layers draw from one stream, in the order of
events.

Memory beyond two models: the workers' weights, each a reference to the server's tensors of that version (workers at one
version share them, and so does an algorithm's copy at pull); a gradient during its transfer; the algorithm's state.
"""

from collections.abc import Callable
from typing import Any

import simpy

from fdt.data import open_source
from fdt.errors import UserError
from fdt.job import BatchHooks, State
from fdt.network.cluster import Cluster
from fdt.network.transfers import run_until
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress
from nfdt import algorithm_registry
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.algorithm_state import Gradient
from nfdt.server.applier import Arrived
from nfdt.server.instructions import Send
from nfdt.server.job import ServedJob
from nfdt.server.service import nbytes_of, placed
from nfdt.server.shard_service import ShardService
from nfdt.simulator.record import EpochRecord, FitRecord, Point, TimedApplier, WallTimes
from nfdt.simulator.workers import SharedBatches, SimulatedWorkers
from nfdt.worker.epoch_counters import EpochCounters
from nfdt.worker.step import GradientStep, ownerships, samples_of, split

POINTS = 50  # points of the curve per epoch
POINTS_EVERY = 20  # pushes between two points, if the length of an epoch is unknown

Heard = Callable[[float, str, int, int], None]


class SimulatedJob:
    """One simulated job.

    Args:
        job: The job as its server has it.
        step: The compiled gradient of the model.
        trainable: The workers' model.
        cluster: Nodes and links.
        send: Sends an event to the engine.
        begin_s: Simulated time at the start of the job, in seconds.
        feed: Batches that the client draws, if it does.
        heard: Called with (seconds, kind, worker, tau) for each call of the algorithm.

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
        feed: Any = None,
        heard: Heard = lambda seconds, kind, worker, tau: None,
    ) -> None:
        self._job, self._step, self._trainable, self._send = job, step.of(job.rule), trainable, send
        self._owned = ownerships(trainable, 1)
        self._batches, self.steps = self._open(feed)
        lanes = job.lanes * len(cluster.workers)
        self._walls = WallTimes()
        self._env, self._begin_s, self._heard = simpy.Environment(begin_s), begin_s, heard
        self._fleet = SimulatedWorkers(self._env, cluster, job.lanes, job.spec.seed, self)
        applier = TimedApplier(job.applier, self._walls, self._called)
        absent = self._fleet.absent
        self._shard_service = ShardService(job, 1, self._hear, lanes=lanes, applier=applier, absent=absent)
        self._loads = dict.fromkeys(range(lanes), 0)
        self._tally = EpochCounters(trainable, first=True)
        self._lock_step = job.spec.fit.batch_hooks != BatchHooks.NONE
        self._pushes = dict.fromkeys(range(lanes), 0)
        self._done = self._samples = 0
        self._moved = [0, 0]
        self._sizes: dict[tuple[Any, ...], int] = {}  # bytes by direction and positions
        self.record = FitRecord(self._rule_name())
        self._pause = self._env.event()
        self._over: Event | None = None
        self._enroll()

    @property
    def now_s(self) -> float:
        """Simulated time in seconds."""
        return float(self._env.now)

    # -- commands --------------------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, changed: State) -> None:
        """Start an epoch."""
        self._go(lambda: self._shard_service.start_epoch(epoch, changed))

    def step(self, changed: State) -> None:
        """Lock step: continue with the next push."""
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

    def _rule_name(self) -> str:
        trainable = self._trainable
        return self._job.options.rule or algorithm_registry.default_for(trainable.model.optimizer, trainable.trainable)

    def _enroll(self) -> None:
        for lane, inbox in enumerate(self._fleet.inboxes):
            self._shard_service.connect(lane, self.steps, inbox)
        for lane in self._fleet.gone:
            self._shard_service.leave(lane)
        self._fleet.start()

    def _open(self, feed: Any) -> tuple[SharedBatches, int | None]:
        spec, blobs = self._job.spec, self._job.blobs
        how = {"options": spec.options, "feed": feed, "flavor": spec.program.flavor}
        source = open_source(spec.data, spec.fit, blobs, spec.seed, training=True, **how)
        return SharedBatches(source), source.steps

    # -- SimulatedServer, for the lanes (workers.py) -------------------------------------------------------

    def ask(self, lane: int) -> None:
        """Handle a lane's request."""
        self._shard_service.ask(lane)

    def leave(self, lane: int) -> None:
        """Remove a lane."""
        self._shard_service.leave(lane)

    def receive(self, lane: int, sent: Send) -> int | None:
        """Return the bytes of the weights; None if the batch does not exist."""
        for batch in sent.batches if self.steps is None else ():
            try:
                self._batches.look(sent.epoch, batch)
            except IndexError:
                self._shard_service.end_of_data(lane, batch)
                return None
        places, tensors = placed(sent.sent, everything=self._loads[lane] != self._job.loads)
        self._loads[lane] = self._job.loads
        nbytes = self._nbytes("pull", places, tensors)
        self._moved[1] += nbytes
        return nbytes

    def compute(self, lane: int, sent: Send, seconds: float) -> tuple[tuple[Gradient, Any], int]:
        """Return ((gradient, its lock-step note), bytes)."""
        pulled = placed(sent.sent, everything=True)  # another worker has used the model in between
        with self._walls.counted("gradient_s"):
            batches = [self._batches.take(sent.epoch, batch) for batch in sent.batches]
            computed = self._step.run(lane, batches, self._owned, [pulled])
        samples = sum(samples_of(batch) for batch in batches)
        self._tally.add(samples, computed.logs, len(batches))
        (part,) = split(self._owned, computed)
        absent, places, tensors = part.layout()
        nbytes = self._nbytes("push", places, tensors)
        self._moved[0] += nbytes
        arrived = Arrived(part.gradient, tuple(absent), part.changes, tuple(part.changed))
        gradient = Gradient(arrived, samples, seconds, computed.finite, len(batches))
        return (gradient, self._note()), nbytes

    def _nbytes(self, way: str, places: list[int], tensors: list[Any]) -> int:
        """Return the bytes of the tensors at these positions. They are cached: TensorFlow computes them slowly."""
        key = way, *places
        if key not in self._sizes:
            self._sizes[key] = sum(map(nbytes_of, tensors))
        return self._sizes[key]

    def push(self, lane: int, sent: Send, gradient: tuple[Gradient, Any]) -> None:
        """Push a gradient."""
        values, note = gradient
        self._pushes[lane] += 1
        message = pb.Push(push=self._pushes[lane], batches=sent.batches, **note)
        before, self._done = self._done, self._done + values.batches
        self._samples += values.samples
        self._shard_service.push(lane, message, values)
        every = max(1, (self.steps or POINTS * POINTS_EVERY) // POINTS)
        if before // every < self._done // every:
            self._report(sent.epoch)

    def _note(self) -> dict[str, Any]:
        """Return the fields of a lock-step push: logs and metric states of the step."""
        if not self._lock_step:
            return {}
        return {"logs": self._tally.floats(), "metrics": self._job.blobs.put_arrays(self._tally.metrics())}

    # -- reports ---------------------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
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
            self.record.staleness[tau] = self.record.staleness.get(tau, 0) + 1
        self._heard(self.now_s - self._begin_s, kind, worker, tau)

    def _end_epoch(self, event: Event) -> None:
        """Report the end of an epoch: first the server's report, then that of the workers."""
        end, walls, tally = event.epoch_end, self._walls, self._tally
        end.extra["simulated_s"] = self.now_s
        self._send(event)
        sent, received = self._moved
        mine = EpochEnd(epoch=end.epoch, steps=end.steps, samples=end.samples, logs=tally.floats())
        mine.seconds, mine.bytes_sent, mine.bytes_received = walls.total_s, sent, received
        mine.metrics.CopyFrom(self._job.blobs.put_arrays(tally.metrics()))
        self._send(Event(epoch_end=mine))
        self.record.epochs.append(
            EpochRecord(
                epoch=end.epoch,
                pushes=end.steps,
                samples=end.samples,
                simulated_s=self.now_s - self._begin_s,
                bytes_sent=sent,
                bytes_received=received,
                **vars(walls),
            )
        )
        self.record.links = dict(zip(self._fleet.topology.names, self._fleet.transfers.sent_bytes, strict=True))
        tally.reset()
        self._over, self._moved = None, [0, 0]
        walls.reset()

    def _report(self, epoch: int) -> None:
        tally = self._tally
        logs = tally.floats()
        elapsed_s = self.now_s - self._begin_s
        self.record.points.append(Point(epoch, self._done, self._samples, tally.samples, elapsed_s, logs))
        progress = Progress(epoch=epoch, step=tally.steps, samples=tally.samples)
        progress.bytes_sent, progress.bytes_received = self._moved
        progress.logs.update({**logs, "simulated_s": self.now_s})
        self._send(Event(progress=progress))
