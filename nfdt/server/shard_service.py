"""Connection of sessions and scheduler: one lock, one queue of replies per worker, one log for the other shards.

`ShardService` is shard 0's, `FollowerShardService` (follower.py) that of all others. A session passes its worker's
message on and waits on its queue. The event that allows the reply puts it there.
"""

import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from fdt.errors import UserError
from fdt.job import BatchHooks, State
from fdt.rpc.session_pb2 import Commit, EpochEnd, Event, Remaining, StepEnd, WorkerShare
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.tensors import put_logs
from nfdt.model import staleness_fields
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server import EpochDone, Instruction, NotFinite, Reader, ReplicatedLog, Replies, ReplyInbox, Send, StepDone
from nfdt.server.algorithm_state import AlgorithmState, Applier
from nfdt.server.batch_dispatcher import Begun, RemainingBatches
from nfdt.server.job import SchedulerState, ServedJob, StepMetrics, restore, save
from nfdt.server.scheduler import Scheduler
from nfdt.transport import WorkerGradient

NOT_BEGUN = Commit()


class ShardService:
    """One job on shard 0, thread-safe. A simulation gives `lanes`, those that are `absent`, and an `applier`."""

    def __init__(
        self,
        job: ServedJob,
        workers: int,
        send: Callable[[Event], None],
        *,
        lanes: int | None = None,
        applier: Applier | None = None,
        absent: Collection[int] = (),
    ) -> None:
        self.job = job
        self._lanes = lanes or job.lanes
        hooks = job.spec.fit.batch_hooks
        self._with_state = hooks == BatchHooks.STATE
        core = AlgorithmState(job.rule, applier or job.applier, workers * self._lanes)
        lock_step = hooks != BatchHooks.NONE
        # A script with batch callbacks may handle NaN itself (TerminateOnNaN).
        on_nan = job.options.on_nan or ("apply" if lock_step else "stop")
        self.scheduler = Scheduler(core, None, lock_step=lock_step, on_nan=on_nan, absent=absent)
        self._send_event = send
        self._incarnations: dict[int, int] = {}  # by rank, for replaced workers
        self._metrics = StepMetrics(job.blobs, job.trainable)
        self._checkpoints = 0
        self._resumed: EpochEnd | None = None  # sent again after a restoration
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._replies: dict[int, ReplyInbox] = {}
        self._log = ReplicatedLog()

    # -- sessions --------------------------------------------------------------------------------------------
    def open(self, worker: int, steps: int | None, incarnation: int = 0, ends_received: int = 0) -> Replies:
        """Open a worker's session, or reopen it after a broken one.

        Args:
            worker: Number of the worker's lane.
            steps: Batches in an epoch; None while unknown.
            incarnation: Number of replacements of this rank's worker so far.
            ends_received: Number of epoch ends that the worker has received.

        Returns:
            The queue of replies. It also identifies the session in the calls below.
        """
        replies: Replies = queue.SimpleQueue()
        with self._lock:
            if self.closed.is_set() or not self._admit(worker // self._lanes, incarnation):
                replies.put(None)
                return replies
            before = self._replies.get(worker)
            self.scheduler.reconnect(worker, ends_received)
            self._connect(worker, steps, replies)
        if before is not None:
            before.put(None)
        return replies

    def connect(self, worker: int, steps: int | None, inbox: ReplyInbox) -> None:
        """Open a session as `open` does, with the given inbox."""
        with self._lock:
            self._connect(worker, steps, inbox)

    def ask(self, worker: int, session: Replies | None = None) -> None:
        """Handle a worker's request. In all these calls a `session` that was replaced is ignored."""
        self._handle(worker, session, lambda: self.scheduler.ask(worker))

    def push(self, worker: int, number: int, gradient: WorkerGradient, session: Replies | None = None) -> bool:
        """Handle a worker's push of this number. Return True: an answer follows in the queue."""

        def push() -> list[Instruction]:
            if gradient.metrics is not None and gradient.metrics.id:
                self._metrics.arrive(gradient.metrics)
            return self.scheduler.push(worker, number, gradient)

        self._handle(worker, session, push)
        return True

    def end_of_data(self, worker: int, batch: int, session: Replies | None = None) -> None:
        """Handle the report that batch `batch` does not exist."""
        self._handle(worker, session, lambda: self.scheduler.end_of_data(worker, batch))

    def leave(self, worker: int) -> None:
        """Remove one worker."""
        self._do(lambda: self.scheduler.leave(worker))

    def lose(self, rank: int, incarnation: int) -> None:
        """Remove all lanes of a worker whose process has ended."""
        with self._lock:
            if self._incarnations.get(rank, 0) <= incarnation:
                self._incarnations[rank] = incarnation + 1
                self._leave(rank)

    def follow(self, position: int = 0) -> Reader:
        """Return a reader of the log after its first `position` entries; None ends it."""
        with self._lock:
            return self._log.open(position)

    def unfollow(self, reader: Reader) -> None:
        """Remove a reader of the log."""
        with self._lock:
            self._log.close(reader)

    # -- the engine's commands -------------------------------------------------------------------------------
    def start_epoch(self, epoch: int, changed: State, begin: Commit = NOT_BEGUN) -> None:
        """Load the state that the client changed; start the epoch, or let one that began early end.

        Args:
            epoch: Number of the epoch.
            changed: The state, empty where the client changed nothing.
            begin: What was done of the epoch before it was suspended.
        """
        remaining = RemainingBatches(begin.remaining.next, tuple(begin.remaining.returned))
        begun = Begun(remaining, begin.samples, begin.skipped)

        def start() -> list[Instruction]:
            self._write(pb.Logged(kind="load", epoch=epoch))
            self._load(changed)
            return self.scheduler.start_epoch(epoch, begun)

        self._do(start)

    def step(self, changed: State) -> None:
        """Lock step: load a changed state, such as the learning rate, and apply the next push."""

        def step() -> list[Instruction]:
            self._load(changed)
            return self.scheduler.step()

        self._do(step)

    def _load(self, changed: State) -> None:
        self.job.load(changed)
        if changed.metrics.id:
            self._metrics.write(changed.metrics)

    def stop_epoch(self) -> None:
        self._do(self.scheduler.stop_epoch)

    def suspend(self) -> None:
        self._do(self.scheduler.suspend)

    def finish(self) -> None:
        self._do(self.scheduler.finish)
        with self._lock:
            self._log.end()
            self._metrics.clear()

    # -- membership ------------------------------------------------------------------------------------------
    def _admit(self, rank: int, incarnation: int) -> bool:
        """Return whether a worker may begin. A replacement removes its predecessor."""
        known = self._incarnations.get(rank, 0)
        if incarnation < known:
            return False
        if incarnation > known:
            self._incarnations[rank] = incarnation
            self._leave(rank)
        for lane in self._lanes_of(rank):
            if lane not in self.scheduler.state.worker_states:
                self._execute(self.scheduler.join(lane))
        return True

    def _leave(self, rank: int) -> None:
        self._execute(self.scheduler.leave(*self._lanes_of(rank)))
        for lane in self._lanes_of(rank):
            if (replies := self._replies.pop(lane, None)) is not None:
                replies.put(None)

    def _lanes_of(self, rank: int) -> range:
        return range(rank * self._lanes, (rank + 1) * self._lanes)

    def _connect(self, worker: int, steps: int | None, inbox: ReplyInbox) -> None:
        self.scheduler.expect(steps)
        self._replies[worker] = inbox

    # -- checkpoints -----------------------------------------------------------------------------------------
    def checkpoint(self) -> None:
        """Save within an epoch: all shards save at this position of the log."""
        with self._lock:
            if self.scheduler.epoch is not None and not self.closed.is_set():
                self._checkpoints += 1
                number = self.scheduler.epoch.number
                self._write(pb.Logged(kind="checkpoint", epoch=number, push=self._checkpoints))
                self._save(number)

    def _save(self, epoch: int, end: EpochEnd | None = None) -> None:
        decided = SchedulerState(*self.scheduler.saved(), self.scheduler.ended, self._incarnations, self._checkpoints)
        save(self.job, self.scheduler.state, self._send_event, epoch, self._checkpoints, end, decided)

    def restore(self, ref: BlobRef) -> None:
        """Load a snapshot, before the first session."""
        decided, self._resumed = restore(self.job, self.scheduler.state, ref)
        self._checkpoints, self._incarnations = decided.number, decided.incarnations
        self.scheduler.restore(decided.epoch, decided.missed, decided.ended)

    def resume(self) -> None:
        """Send the end of the last epoch again: the first message may be lost."""
        if self._resumed is not None:
            self._send_event(self.job.epoch_end(self._resumed))

    def close(self) -> None:
        """End all sessions and touch no variable any more: another shard service takes over the same variables."""
        with self._lock:
            self.closed.set()
            for replies in self._replies.values():
                replies.put(None)
            self._log.end()

    # -- execution -------------------------------------------------------------------------------------------
    def _handle(self, worker: int, session: Replies | None, event: Callable[[], list[Instruction]]) -> None:
        with self._lock:
            if self.closed.is_set() or (session is not None and self._replies.get(worker) is not session):
                return
            try:
                self._execute(event())
            except NotFinite as error:
                batches = ", ".join(map(str, error.batches))
                raise UserError(
                    f"NaN or infinity in the gradients of worker {error.worker // self._lanes} in its step "
                    f"{error.push}, batch {batches} of epoch {error.epoch + 1}; --on-nan skip leaves such steps out"
                ) from None

    def _do(self, event: Callable[[], list[Instruction]]) -> None:
        self._handle(-1, None, event)

    def _execute(self, instructions: list[Instruction]) -> None:
        entries = self.scheduler.state.take_log()
        for entry in entries if self.job.shards > 1 else ():
            self._log.write(pb.Logged(**vars(entry)))
        for instruction in instructions:
            if isinstance(instruction, StepDone):
                self._send_event(self._step_end(instruction))
            elif isinstance(instruction, EpochDone):
                self._end_epoch(instruction)
            else:
                if isinstance(instruction, Send):
                    instruction = replace(instruction, loads=self.job.loads)
                self._replies[instruction.worker].put(instruction)

    def _end_epoch(self, done: EpochDone) -> None:
        end = EpochEnd(epoch=done.epoch, steps=done.steps, samples=done.samples, extra=staleness_fields(done.staleness))
        if self.scheduler.lock_step and self._metrics.states:  # otherwise the engine adds them to the workers'
            end.metrics.CopyFrom(self._metrics.put_sum())
        end.skipped = done.skipped
        if done.remaining is not None:
            end.remaining.CopyFrom(Remaining(**vars(done.remaining)))
        ranks = sorted({worker // self._lanes for worker in done.workers})
        end.workers.extend(WorkerShare(rank=rank, incarnation=self._incarnations.get(rank, 0)) for rank in ranks)
        self._metrics.clear()
        self._checkpoints += 1
        self._write(pb.Logged(kind="snapshot", epoch=done.epoch, push=self._checkpoints))
        self._save(done.epoch, end)
        self._send_event(self.job.epoch_end(end))
        if self.job.options.overlap_epochs and done.epoch + 1 < self.job.spec.fit.epochs:
            self._execute(self.scheduler.start_epoch(done.epoch + 1, early=True))

    def _step_end(self, done: StepDone) -> Event:
        if done.fresh:
            rank = done.worker // self._lanes
            self._metrics.read((rank, self._incarnations.get(rank, 0)), done.gradient)
        end = StepEnd(step=done.step, metrics=self._metrics.put_sum(), last=done.last)
        put_logs(end, done.gradient.logs)
        if self._with_state:
            self.job.put_snapshot(end)
        return Event(job=self.job.spec.id, step_end=end)

    def _write(self, entry: pb.Logged) -> None:
        if self.job.shards > 1:
            self._log.write(entry)
