"""The simulated channel: a lane's session with the shard service on the simulated clock."""

from typing import Any

import simpy

from nfdt.server.applier import Sent
from nfdt.server.instructions import Reply
from nfdt.server.shard_service import ShardService
from nfdt.transport.buffers import nbytes_of
from nfdt.transport.channel import Answer, EpochOver, Interrupted, Release, Weights, WorkerGradient


class SimulatedChannel:
    """A ParameterServerChannel whose answer is there once the event `arrived` has happened.

    Requests and answers take no simulated time. The lane adds it (nfdt/simulator/workers.py) and calls `begin_pull` and
    `begin_push` where tensors begin to travel. All workers share one model, so `Weights` holds all tensors; only those
    that a real channel would send are counted.

    Args:
        env: The simulated clock.
        shard_service: The server.
        lane: Number of the lane.
        steps: Batches in an epoch; None while unknown.
        sizes: Bytes by direction and positions, for all lanes: TensorFlow computes them slowly.

    Attributes:
        arrived: Event of simpy: the answer to the last request.
    """

    def __init__(
        self,
        env: simpy.Environment,
        shard_service: ShardService,
        lane: int,
        steps: int | None,
        sizes: dict[tuple[Any, ...], int],
    ) -> None:
        self._env, self._shard_service, self._lane, self._steps = env, shard_service, lane, steps
        self.bytes_sent = self.bytes_received = 0
        self._sizes, self._loads = sizes, 0
        self._sent: Sent

    def open(self) -> None:
        """Open a session of the shard service, which calls `put`."""
        self._loads = 0
        self._shard_service.connect(self._lane, self._steps, self)

    def ask(self, pull: int = 0) -> None:
        """Request weights and batches."""
        self.arrived = self._env.event()
        self._shard_service.ask(self._lane)

    def push(self, number: int, gradient: WorkerGradient) -> None:
        """Pass a gradient on."""
        self.arrived = self._env.event()
        self._shard_service.push(self._lane, number, gradient)

    def end_of_data(self, batch: int) -> None:
        """Report that batch `batch` does not exist."""
        self.arrived = self._env.event()
        self._shard_service.end_of_data(self._lane, batch)

    def put(self, item: Reply) -> None:
        """Deliver a reply of the shard service."""
        self.arrived.succeed(item)

    def answer(self) -> Answer:
        """Return the answer that has arrived. Raises Interrupted if the shard service has ended the session."""
        reply: Reply = self.arrived.value
        if reply is None:
            raise Interrupted("the shard service has ended this lane's session")
        if isinstance(reply, (EpochOver, Release)):
            return reply
        self._sent = reply.sent
        positions, tensors = self._sent.placed(everything=True)
        return Weights(positions, tensors, reply.epoch, reply.batches, reply.ahead, reply.pull)

    def close(self) -> None:
        """Do nothing: the shard service removes lanes that leave."""

    def begin_pull(self) -> int:
        """Count the weights of the last answer, which begin to travel. Return their bytes."""
        everything, self._loads = self._loads != self._shard_service.job.loads, self._shard_service.job.loads
        nbytes = self._nbytes("pull", *self._sent.placed(everything=everything))
        self.bytes_received += nbytes
        return nbytes

    def begin_push(self, gradient: WorkerGradient) -> int:
        """Count a gradient, which begins to travel. Return its bytes."""
        present = [i for i, tensor in enumerate(gradient.gradient) if tensor is not None]
        positions = [*present, *(len(gradient.gradient) + i for i in gradient.changed)]
        nbytes = self._nbytes("push", positions, [*(gradient.gradient[i] for i in present), *gradient.changes])
        self.bytes_sent += nbytes
        return nbytes

    def _nbytes(self, way: str, positions: list[int], tensors: list[Any]) -> int:
        key = way, *positions
        if key not in self._sizes:
            self._sizes[key] = sum(map(nbytes_of, tensors))
        return self._sizes[key]
