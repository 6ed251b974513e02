"""A parameter server in the process of its only worker: no message is serialized, and no tensor is copied or sent.

One worker and one server need no second process: `nfdt run -np 1` starts neither a server nor a stream.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from fdt.blobs import Blobs
from fdt.job import JobSpec
from fdt.rpc.session_pb2 import Event
from fdt.trainable import Trainable, build
from nfdt.model.shards import Ownership
from nfdt.server import Replies
from nfdt.server.job import ServedJob, served
from nfdt.server.shard_service import ShardService
from nfdt.transport import Answer, EpochOver, Interrupted, Release, Weights, WorkerGradient
from nfdt.transport.buffers import SessionPulls


class LocalServer:
    """The server of one worker process. It stays alive between jobs and reuses the model of the last program."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._built: tuple[Any, Trainable | None] = (None, None)  # JobSpec.made_for, Trainable

    def job(self, spec: JobSpec) -> ServedJob:
        """Return the server's job, with a model of its own."""
        made_for, trainable = self._built
        if trainable is None or made_for != spec.made_for:
            with _new_classes():
                trainable = build(spec.program, self._blobs)
            self._built = (spec.made_for, trainable)
        return ServedJob(spec, trainable, self._blobs, shard=0, shards=1, workers=1)

    def serve(self, spec: JobSpec, send: Callable[[Event], None]) -> "LocalShardService":
        """Return the shard service of a new job; `send` sends an event to the engine."""
        shard_service: LocalShardService = served(LocalShardService, self.job(spec), 1, send)
        return shard_service


@contextlib.contextmanager
def _new_classes() -> Iterator[None]:
    """Within, the script's classes are made anew: cloudpickle would replace the methods of the worker's."""
    tracked = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = weakref.WeakValueDictionary()
    try:
        yield
    finally:
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID = tracked


class LocalShardService(ShardService):
    """A shard service that makes the channels of its process's worker."""

    def __call__(self, worker: int, steps: int | None, owned: Sequence[Ownership]) -> list["LocalChannel"]:
        """Return the channel of lane `worker`."""
        return [LocalChannel(self, worker, steps)]


class LocalChannel:
    """A ParameterServerChannel that calls the shard service directly."""

    bytes_sent = bytes_received = 0

    def __init__(self, shard_service: ShardService, worker: int, steps: int | None) -> None:
        self._shard_service, self._worker, self._steps = shard_service, worker, steps
        self._replies: Replies
        self._ends_received = 0  # epoch ends that the worker has received

    def open(self) -> None:
        self._replies = self._shard_service.open(self._worker, self._steps, ends_received=self._ends_received)
        self._pulls = SessionPulls()

    def ask(self, pull: int = 0) -> None:
        self._shard_service.ask(self._worker, self._replies)

    def push(self, number: int, gradient: WorkerGradient) -> None:
        self._shard_service.push(self._worker, number, gradient, self._replies)

    def end_of_data(self, batch: int) -> None:
        self._shard_service.end_of_data(self._worker, batch, self._replies)

    def answer(self) -> Answer:
        """Wait for the answer. Raises Interrupted if the shard service has ended the session."""
        reply = self._replies.get()
        if reply is None:
            raise Interrupted("the shard service has ended this worker's session")
        if isinstance(reply, EpochOver):
            self._ends_received = reply.epoch + 1
        if isinstance(reply, (EpochOver, Release)):
            return reply
        positions, tensors = self._pulls.placed(reply.sent, reply.loads)
        return Weights(positions, tensors, reply.epoch, reply.batches, reply.ahead, reply.pull, reply.staleness)

    def close(self) -> None:
        """Do nothing: no stream is open."""
