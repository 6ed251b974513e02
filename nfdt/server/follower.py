"""Shards 1 and above: they replay shard 0's log over their own variables, with the same algorithm, and decide nothing.

A worker's part of a gradient is staged on these shards before the worker pushes to shard 0. So replaying never waits
for a missing part.
"""

import queue
import sys
import threading
from collections.abc import Callable, Iterable

from fdt.job import State
from fdt.rpc.session_pb2 import Commit, EpochEnd, Event
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.security.auth import credentials
from fdt.service.transport import open_channel
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server import Replies, Send
from nfdt.server.algorithm_state import AlgorithmState, Applier
from nfdt.server.job import ServedJob, restore, save
from nfdt.transport import Interrupted, WorkerGradient
from nfdt.transport.grpc_channel import interrupted

FOLLOW = "/nfdt.rpc.ParameterServer/Follow"
RETRY_S = 0.1


class FollowerShardService:
    """One job on a shard other than 0. `replay` runs in its own thread."""

    def __init__(
        self, job: ServedJob, workers: int, send: Callable[[Event], None], *, applier: Applier | None = None
    ) -> None:
        self.job = job
        self.core = AlgorithmState(job.rule, applier or job.applier, workers * job.lanes)
        self._send_event = send
        self._lock = threading.Lock()
        self._replies: dict[int, Replies] = {worker: queue.SimpleQueue() for worker in self.core.worker_states}
        self._staged: dict[int, WorkerGradient] = {}
        self._epochs: queue.SimpleQueue[State] = queue.SimpleQueue()
        self._resumed: EpochEnd | None = None
        self._replaying = threading.Lock()
        self._incarnations: dict[int, int] = {}  # by rank: the latest that has opened a session
        self.position = 0  # number of replayed entries of shard 0's log
        self.closed = threading.Event()

    # -- sessions --------------------------------------------------------------------------------------------

    def open(self, worker: int, steps: int | None, incarnation: int = 0, ends_received: int = 0) -> Replies:
        """Open a session as ShardService.open does.

        The session of a replaced worker may arrive after that of its replacement; it ends at once.
        """
        replies: Replies = queue.SimpleQueue()
        rank = worker // self.job.lanes
        with self._lock:
            if self.closed.is_set() or incarnation < self._incarnations.get(rank, 0):
                replies.put(None)
                return replies
            self._incarnations[rank] = incarnation
            before, self._replies[worker] = self._replies.get(worker), replies
        if before is not None:
            before.put(None)
        return replies

    def push(self, worker: int, number: int, gradient: WorkerGradient, session: Replies | None = None) -> bool:
        """Stage the gradient. Return False: no reply follows in the queue."""
        with self._lock:
            if session is None or self._replies.get(worker) is session:
                self._staged[worker] = gradient
        return False

    def _left_to_shard_0(self, *_: object) -> None:
        """Do nothing: shard 0 handles it and logs the consequences. A reply that it decides arrives in the queue."""

    ask = end_of_data = lose = _left_to_shard_0

    # -- the engine's commands, and shard 0's log ------------------------------------------------------------

    def start_epoch(self, epoch: int, changed: State, begin: Commit | None = None) -> None:
        """Queue the state that the client changed; the log's `load` entry applies it."""
        self._epochs.put(changed)

    step = stop_epoch = suspend = finish = _left_to_shard_0

    def restore(self, ref: BlobRef) -> None:
        """Load a snapshot, before the first session."""
        _, self._resumed = restore(self.job, self.core, ref)
        with self._lock:
            self._replies = {worker: queue.SimpleQueue() for worker in self.core.worker_states}

    def resume(self) -> None:
        """Send the epoch's end again, as ShardService.resume does."""
        if self._resumed is not None:
            self._send_event(self.job.epoch_end(self._resumed))

    def close(self) -> None:
        """End all sessions and stop the replay, as ShardService.close does."""
        with self._replaying, self._lock:
            self.closed.set()
            for replies in self._replies.values():
                replies.put(None)

    def replay(self, log: Iterable[pb.Logged]) -> None:
        """Execute the entries of shard 0's log in order."""
        for entry in log:
            with self._replaying:
                if self.closed.is_set():
                    return
                getattr(self, f"_{entry.kind}")(entry)
                self.core.take_log()
                self.position += 1

    def _load(self, entry: pb.Logged) -> None:
        self.job.load(self._epochs.get())

    def _snapshot(self, entry: pb.Logged) -> None:
        end = EpochEnd(epoch=entry.epoch)
        save(self.job, self.core, self._send_event, entry.epoch, entry.push, end)
        self._send_event(self.job.epoch_end(end))

    def _checkpoint(self, entry: pb.Logged) -> None:
        save(self.job, self.core, self._send_event, entry.epoch, entry.push)

    def _pull(self, entry: pb.Logged) -> None:
        sent = self.core.pull(entry.worker)
        if sent is not None:
            with self._lock:
                send = Send(entry.worker, 0, (), sent, pull=self.core.pulls, loads=self.job.loads)
                self._replies[entry.worker].put(send)

    def _push(self, entry: pb.Logged) -> None:
        with self._lock:
            gradient = self._staged.pop(entry.worker)
        tau = self.core.push(entry.worker, entry.push, gradient)
        assert tau == entry.tau, "a replayed decision equals shard 0's"

    def _leave(self, entry: pb.Logged) -> None:
        self.core.leave(entry.worker)

    def _join(self, entry: pb.Logged) -> None:
        """Drop the replies for the worker that this one replaces."""
        with self._lock:
            replies = self._replies.get(entry.worker, queue.SimpleQueue())
            while not replies.empty():
                replies.get()
        self.core.join(entry.worker)

    def _flush(self, entry: pb.Logged) -> None:
        self.core.flush()


def follow(shard_service: FollowerShardService, address: str, token: str) -> None:
    """Replay the log of shard 0, at `address`, to its end; reconnect at the reached position if the stream breaks."""
    job, generation = shard_service.job.spec.id, shard_service.job.generation
    with open_channel(address) as channel:
        call = channel.unary_stream(FOLLOW, response_deserializer=pb.Logged.FromString)
        while not shard_service.closed.is_set():
            request = pb.FollowRequest(
                job=job, generation=generation, position=shard_service.position
            ).SerializeToString()
            try:
                with interrupted():
                    shard_service.replay(call(request, metadata=credentials(token), wait_for_ready=True))
                return
            except Interrupted as error:
                print(f"shard 0's log was interrupted: {error}", file=sys.stderr, flush=True)
                shard_service.closed.wait(RETRY_S)
