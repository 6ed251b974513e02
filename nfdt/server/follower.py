"""Shards 1 and up: they decide nothing. They replay shard 0's log over their own variables, with the same rule.

A worker's part of a gradient is staged here before shard 0 hears of the push, so replaying never waits for a part that
does not come.
"""

import queue
import threading
from collections.abc import Callable, Iterable

from fdt.job import State
from fdt.rpc.session_pb2 import EpochEnd, Event
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.core import Core, Gradient
from nfdt.server.desk import Replies, epoch_end
from nfdt.server.job import ServedJob
from nfdt.server.policy import Send


class FollowingDesk:
    """One job on a shard that follows. `replay` runs in a thread of its own."""

    def __init__(self, job: ServedJob, workers: int, send: Callable[[Event], None]) -> None:
        self.job = job
        self.core = Core(job.rule, job.applier, workers * job.lanes)
        self._send_event = send
        self._lock = threading.Lock()
        self._replies: dict[int, Replies] = {worker: queue.SimpleQueue() for worker in self.core.slots}
        self._staged: dict[int, Gradient] = {}
        self._epochs: queue.SimpleQueue[State] = queue.SimpleQueue()

    # -- sessions --------------------------------------------------------------------------------------------

    def open(self, worker: int, steps: int | None) -> Replies:
        with self._lock:
            self._replies[worker] = queue.SimpleQueue()
            return self._replies[worker]

    def ask(self, worker: int) -> None:
        """What shard 0 decided comes by the queue."""

    def push(self, worker: int, message: pb.Push, gradient: Gradient) -> bool:
        """False: staged; nothing comes by the queue for it."""
        with self._lock:
            self._staged[worker] = gradient
        return False

    def end_of_data(self, worker: int, batch: int) -> None:
        """Shard 0's business."""

    # -- the engine's commands, and shard 0's log ------------------------------------------------------------

    def start_epoch(self, epoch: int, changed: State) -> None:
        self._epochs.put(changed)

    def step(self, changed: State) -> None:
        """Shard 0's business."""

    def stop_epoch(self) -> None:
        """Shard 0's business."""

    def finish(self) -> None:
        """Shard 0's business."""

    def replay(self, log: Iterable[pb.Logged]) -> None:
        for entry in log:
            getattr(self, f"_{entry.kind}")(entry)
            self.core.take_log()

    def _load(self, entry: pb.Logged) -> None:
        self.job.load(self._epochs.get())

    def _snapshot(self, entry: pb.Logged) -> None:
        self._send_event(epoch_end(self.job, EpochEnd(epoch=entry.epoch)))

    def _pull(self, entry: pb.Logged) -> None:
        sent = self.core.pull(entry.worker)
        if sent is not None:
            with self._lock:
                self._replies[entry.worker].put(Send(entry.worker, 0, (), sent))

    def _push(self, entry: pb.Logged) -> None:
        with self._lock:
            gradient = self._staged.pop(entry.worker)
        tau = self.core.push(entry.worker, entry.push, gradient)
        assert tau == entry.tau, "a replay decides as shard 0 did"

    def _leave(self, entry: pb.Logged) -> None:
        self.core.leave(entry.worker)

    def _flush(self, entry: pb.Logged) -> None:
        self.core.flush()
