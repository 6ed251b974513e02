"""A worker's session with a server in its own process: no message is serialized, and no tensor is copied or sent.

One worker and one server need no second process: `nfdt run -np 1` starts neither a server nor a stream.
"""

from collections.abc import Iterable
from typing import Any

from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.algorithm_state import Gradient
from nfdt.server.applier import Arrived
from nfdt.server.instructions import EpochOver, Release
from nfdt.server.service import placed
from nfdt.server.shard_service import ShardService
from nfdt.transport.channel import OutgoingPush

Tensor = Any


class LocalChannel:
    """A ParameterServerChannel that calls the shard service directly."""

    bytes_sent = bytes_received = 0

    def __init__(self, shard_service: ShardService, hello: pb.Hello) -> None:
        self._shard_service, self._worker = shard_service, hello.worker
        self._replies = shard_service.open(hello.worker, None if hello.steps < 0 else hello.steps)
        self._loads = 0
        self._pulled: dict[int, Tensor] = {}

    def request(self, message: pb.ToServer, push: OutgoingPush | None = None) -> pb.ToWorker:
        """Pass one message to the shard service and wait for its answer."""
        if push is not None:
            self._shard_service.push(self._worker, message.push, _gradient(message.push, push))
        elif message.HasField("end"):
            self._shard_service.end_of_data(self._worker, message.end.batch)
        else:
            self._shard_service.ask(self._worker)
        reply = self._replies.get()
        if isinstance(reply, EpochOver):
            return pb.ToWorker(epoch_over=pb.EpochOver(epoch=reply.epoch))
        if reply is None or isinstance(reply, Release):
            return pb.ToWorker(released=pb.Released())
        everything, self._loads = self._loads != self._shard_service.job.loads, self._shard_service.job.loads
        positions, tensors = placed(reply.sent, everything=everything)
        self._pulled = dict(zip(positions, tensors, strict=True))
        weights = pb.Weights(epoch=reply.epoch, batches=reply.batches, ahead=reply.ahead, positions=positions)
        return pb.ToWorker(weights=weights)

    def pulled(self, positions: Iterable[int]) -> list[Tensor]:
        """Return the pulled tensors at `positions`."""
        return [self._pulled[position] for position in positions]

    def open(self) -> None:
        """Do nothing: there is no stream."""

    def close(self) -> None:
        """Do nothing: there is no stream."""


def _gradient(message: pb.Push, push: OutgoingPush) -> Gradient:
    absent, _, _ = push.layout()
    arrived = Arrived(push.gradient, tuple(absent), push.changes, tuple(push.changed))
    return Gradient(arrived, message.samples, message.seconds, not message.not_finite, len(message.batches))
