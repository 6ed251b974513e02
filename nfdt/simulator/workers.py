"""Simulated workers: pull, gradient, push, on a simulated clock (simpy). The shard service makes all decisions.

A lane asks, computes and pushes in turn: a worker, or one of the two that overlap on it (nfdt/model/settings.py). Its
session with the shard service is a simulated channel. Between two events it holds a reference to the weights that it
received, which are the server's immutable tensors. During a push it also holds its gradient.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import simpy

from fdt.data import Batch, Source
from fdt.data.arrays import ArraySource
from fdt.network import Cluster, ClusterNode, Pace
from fdt.network.topology import SERVER, topology_of
from fdt.network.transfers import Transfers
from nfdt.server import Reply, Send
from nfdt.server.shard_service import ShardService
from nfdt.transport import Answer, EpochOver, Interrupted, Release, Weights, WorkerGradient
from nfdt.transport.buffers import SessionPulls, nbytes_of
from nfdt.transport.compression import CompressedLane

Events = Generator[Any, Any, Any]


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
        self._sizes = sizes
        self._sent: Send
        self._compressed = CompressedLane(shard_service.job.layout) if shard_service.job.options.compress else None

    def open(self) -> None:
        """Open a session of the shard service, which calls `put`."""
        self._pulls = SessionPulls()
        if self._compressed is not None:
            self._compressed.open()
        self._shard_service.connect(self._lane, self._steps, self)

    def ask(self, pull: int = 0) -> None:
        self.arrived = self._env.event()
        self._shard_service.ask(self._lane)

    def push(self, number: int, gradient: WorkerGradient) -> None:
        self.arrived = self._env.event()
        if self._compressed is not None:
            gradient = self._compressed.pushed(gradient)[0]
        self._shard_service.push(self._lane, number, gradient)

    def end_of_data(self, batch: int) -> None:
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
        self._sent = reply
        positions, tensors = reply.sent.placed(everything=True)
        if self._compressed is not None:
            tensors = self._compressed.pulled(positions, tensors, reply.loads)
        return Weights(positions, tensors, reply.epoch, reply.batches, reply.ahead, reply.pull)

    def close(self) -> None:
        """Do nothing: the shard service removes lanes that leave."""

    def begin_pull(self) -> int:
        """Count the weights of the last answer, which begin to travel. Return their bytes."""
        nbytes = self._nbytes("pull", *self._pulls.placed(self._sent.sent, self._sent.loads))
        if self._compressed is not None:
            nbytes -= self._compressed.saved_bytes
        self.bytes_received += nbytes
        return nbytes

    def begin_push(self, gradient: WorkerGradient) -> int:
        """Count a gradient, which begins to travel. Return its bytes."""
        present = [i for i, tensor in enumerate(gradient.gradient) if tensor is not None]
        positions = [*present, *(len(gradient.gradient) + i for i in gradient.changed)]
        nbytes = self._nbytes("push", positions, [*(gradient.gradient[i] for i in present), *gradient.changes])
        if self._compressed is not None:
            nbytes = self._compressed.pushed(gradient)[1]
        self.bytes_sent += nbytes
        return nbytes

    def _nbytes(self, way: str, positions: list[int], tensors: list[Any]) -> int:
        key = way, *positions
        if key not in self._sizes:
            self._sizes[key] = sum(map(nbytes_of, tensors))
        return self._sizes[key]


class SimulatedServer(Protocol):
    """Methods that the lanes use (session.py): the channels to the shard service, and the one real model."""

    def channel(self, lane: int) -> SimulatedChannel:
        """Return a lane's channel."""

    def leave(self, lane: int) -> None:
        """Remove a lane."""

    def taken(self, lane: int) -> None:
        """Drop the batches of the lane's last push, which the server has answered."""

    def missing(self, weights: Weights) -> int | None:
        """Return the first batch of `weights` that does not exist, or None."""

    def compute(self, lane: int, weights: Weights, seconds: float) -> WorkerGradient:
        """Return the gradient, which took `seconds` of simulated time."""

    def push(self, lane: int, epoch: int, gradient: WorkerGradient) -> None:
        """Push a gradient."""


class SimulatedWorkers:
    """All lanes of `cluster`'s workers; lanes `i * lanes` to `i * lanes + lanes - 1` are worker i's."""

    def __init__(
        self, env: simpy.Environment, cluster: Cluster, lanes: int, seed: int, shop: SimulatedServer, fit: int = 0
    ) -> None:
        self._env, self._workers, self._lanes, self._server = env, cluster.workers, lanes, shop
        self.topology = topology_of(cluster)
        self.transfers = Transfers(env, self.topology)
        self._paces = [Pace(node, cluster.step_s, (seed,), fit) for node in self._workers]
        self._cores = [simpy.Resource(env) for _ in self._workers]
        self._numbers = range(len(self._workers) * lanes)
        self.absent = {lane for lane in self._numbers if self._node(lane).group.joins_s > env.now}
        self.gone = {lane for lane in self._numbers if self._node(lane).group.leaves_s <= env.now}

    def start(self) -> None:
        """Start all lanes, and schedule those that leave."""
        for lane in self._numbers:
            if lane not in self.gone:
                process = self._env.process(self._lane(lane))
                if self.leaves(lane):
                    self._env.process(self._schedule_leave(lane, process))

    def leaves(self, lane: int) -> bool:
        """Return whether the lane leaves at some time."""
        return not math.isinf(self._node(lane).group.leaves_s)

    def _lane(self, lane: int) -> Events:
        try:
            yield self._env.timeout(max(0.0, self._node(lane).group.joins_s - self._env.now))
            answer = yield from self._ask(lane)
            while not isinstance(answer, Release):
                answer = yield from self._next(lane, answer)
        except simpy.Interrupt:
            self._server.leave(lane)

    def _schedule_leave(self, lane: int, process: Any) -> Events:
        yield self._env.timeout(self._node(lane).group.leaves_s - self._env.now)
        if process.is_alive:
            process.interrupt()

    def _ask(self, lane: int) -> Events:
        yield self._env.timeout(self._up(lane).latency_s)
        self._server.channel(lane).ask()
        return (yield from self._answer(lane))

    def _answer(self, lane: int) -> Events:
        channel = self._server.channel(lane)
        yield channel.arrived
        self._server.taken(lane)
        return channel.answer()

    def _next(self, lane: int, answer: Weights | EpochOver) -> Events:
        if isinstance(answer, EpochOver):
            yield self._env.timeout(self._down(lane).latency_s)
            return (yield from self._ask(lane))
        missing = self._server.missing(answer)
        if missing is None:
            yield self.transfers.send(self._down(lane), self._server.channel(lane).begin_pull())
            yield from self._train(lane, answer)
        else:
            self._server.channel(lane).end_of_data(missing)
        return (yield from self._answer(lane))

    def _train(self, lane: int, weights: Weights) -> Events:
        if self._lanes == 1:  # no other lane uses this worker's cores
            gradient = yield from self._compute(lane, weights)
        else:
            with self._cores[lane // self._lanes].request() as core:
                yield core
                gradient = yield from self._compute(lane, weights)
        yield self.transfers.send(self._up(lane), self._server.channel(lane).begin_push(gradient))
        self._server.push(lane, weights.epoch, gradient)

    def _compute(self, lane: int, weights: Weights) -> Events:
        seconds = self._paces[lane // self._lanes].seconds_of(len(weights.batches), self._env.now)
        yield self._env.timeout(seconds)
        return self._server.compute(lane, weights, seconds)

    def _node(self, lane: int) -> ClusterNode:
        return self._workers[lane // self._lanes]

    def _up(self, lane: int) -> Any:
        return self.topology.route(self._node(lane).index, SERVER)

    def _down(self, lane: int) -> Any:
        return self.topology.route(SERVER, self._node(lane).index)


class SharedBatches:
    """Batches by number. Arrays are read when they are needed; a sequential source is read once, in order.

    A batch of a sequential source is kept until the server answers its push, because another worker computes it if the
    first one leaves meanwhile: at most the `LOOKAHEAD` of nfdt/server/scheduler.py for each worker.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._epoch, self._next = -1, 0
        self._reader: Any = None
        self._kept: dict[int, Batch] = {}
        self._taken: dict[int, Sequence[int]] = {}  # by lane: the kept batches that it computes or pushes

    def draw_ahead(self, epoch: int, index: int) -> None:
        """Read up to batch `index`. Raises IndexError if it does not exist."""
        if isinstance(self._source, ArraySource):
            return
        if epoch != self._epoch:
            self._epoch, self._next, self._reader = epoch, 0, self._source.reader(epoch)
            self._kept, self._taken = {}, {}
        while self._next <= index:
            self._kept[self._next] = self._reader(self._next)
            self._next += 1
        assert index in self._kept, "a batch that a worker has pushed is not assigned again"

    def take(self, lane: int, epoch: int, indices: Sequence[int]) -> list[Batch]:
        """Return the batches that a lane computes."""
        if isinstance(self._source, ArraySource):
            return [self._source.read(epoch, index) for index in indices]
        for index in indices:
            self.draw_ahead(epoch, index)
        self._taken[lane] = indices
        return [self._kept[index] for index in indices]

    def drop(self, lane: int) -> None:
        """Drop the batches that the lane has taken."""
        for index in self._taken.pop(lane, ()):
            del self._kept[index]
