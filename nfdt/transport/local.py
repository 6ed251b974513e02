"""A worker's session with a server of its own process: nothing is packed, copied or sent.

One worker and one server need no second process: `nfdt run -np 1` starts neither a server nor a stream.
"""

from collections.abc import Iterable
from typing import Any

from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.applier import Arrived
from nfdt.server.core import Gradient
from nfdt.server.desk import Desk
from nfdt.server.instructions import EpochOver, Release
from nfdt.server.service import placed
from nfdt.transport.client import Outgoing

Tensor = Any


class LocalLink:
    """What a Link is, without the stream."""

    bytes_sent = bytes_received = 0

    def __init__(self, desk: Desk, hello: pb.Hello) -> None:
        self._desk, self._worker = desk, hello.worker
        self._replies = desk.open(hello.worker, None if hello.steps < 0 else hello.steps)
        self._loads = 0
        self._pulled: dict[int, Tensor] = {}

    def say(self, message: pb.ToServer, push: Outgoing | None = None) -> pb.ToWorker:
        """Give the desk one message and wait for its answer."""
        if push is not None:
            self._desk.push(self._worker, message.push, _gradient(message.push, push))
        elif message.HasField("end"):
            self._desk.end_of_data(self._worker, message.end.batch)
        else:
            self._desk.ask(self._worker)
        reply = self._replies.get()
        if isinstance(reply, EpochOver):
            return pb.ToWorker(epoch_over=pb.EpochOver(epoch=reply.epoch))
        if reply is None or isinstance(reply, Release):
            return pb.ToWorker(released=pb.Released())
        everything, self._loads = self._loads != self._desk.job.loads, self._desk.job.loads
        positions, tensors = placed(reply.sent, everything=everything)
        self._pulled = dict(zip(positions, tensors, strict=True))
        weights = pb.Weights(epoch=reply.epoch, batches=reply.batches, ahead=reply.ahead, positions=positions)
        return pb.ToWorker(weights=weights)

    def pulled(self, positions: Iterable[int]) -> list[Tensor]:
        return [self._pulled[position] for position in positions]

    def open(self) -> None:
        """Nothing is open, and nothing breaks."""

    def close(self) -> None:
        """Nothing is open."""


def _gradient(message: pb.Push, push: Outgoing) -> Gradient:
    absent, _, _ = push.layout()
    arrived = Arrived(push.gradient, tuple(absent), push.changes, tuple(push.changed))
    return Gradient(arrived, message.samples, message.seconds, not message.not_finite, len(message.batches))
