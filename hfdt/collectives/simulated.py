"""A Comm whose ranks are threads on a described network (docs/cluster.md) with a simulated clock.

The clock stands still while a rank runs, until the rank waits for another. Only `work` and packets take simulated time;
packets travel over the network's links. One rank runs at a time, so every run gives the same result.
"""

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import simpy

from fdt.network import Cluster, Pace
from fdt.network.topology import topology_of
from fdt.network.transfers import Transfers
from fdt.typing import Vector
from hfdt.collectives.base import PackedComm

if TYPE_CHECKING:
    from hfdt.collectives.adapters import Packed

Result = TypeVar("Result")
Events = Generator[Any, Any, None]


class SimulatedWorld:
    """The clock and network of one rank on each of `cluster`'s workers. `seed` determines how long their steps take."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.env, self._cluster = simpy.Environment(), cluster
        self.size, self.failed = len(cluster.workers), False
        self._places = [node.index for node in cluster.workers]
        self.paces = [Pace(node, cluster.step_s, (seed,)) for node in cluster.workers]
        self._topology = topology_of(cluster)
        self._transfers = Transfers(self.env, self._topology)
        self._mail: dict[tuple[int, int], Any] = {}
        self._given: dict[int, tuple[str, Vector, Any]] = {}  # rank -> its part of the current sum

    @property
    def now_s(self) -> float:
        """The simulated time in seconds."""
        return float(self.env.now)

    def fail(self) -> None:
        """Let every rank that waits from now on raise an error."""
        self.failed = True

    def mail(self, sender: int, receiver: int) -> Any:
        """Return the queue of packets from `sender` to `receiver`, in order of arrival."""
        return self._mail.setdefault((sender, receiver), simpy.Store(self.env))

    def multicast(self, packet: Vector, root: int, to: Sequence[int]) -> int:
        """Send `packet`; return how many copies cross the sender's link."""
        ends = [self._places[k] for k in to]
        if self._cluster.multicast:
            routes = [(self._topology.multicast(self._places[root], ends), list(to))]
        else:
            routes = [(self._topology.route(self._places[root], end), [k]) for end, k in zip(ends, to, strict=True)]
        for route, receivers in routes:
            self.env.process(
                self._delivered(self._transfers.send(route, packet.nbytes), packet.copy(), root, receivers)
            )
        return len(routes)

    def _delivered(self, arrival: Any, packet: Vector, root: int, receivers: Sequence[int]) -> Events:
        yield arrival
        for receiver in receivers:
            self.mail(root, receiver).put(packet)

    def rendezvous(self, rank: int, name: str, vector: Vector) -> Any:
        """Add `vector` to a sum over all ranks by a ring; return an event whose value is the sum."""
        met = self.env.event()
        self._given[rank] = name, vector, met
        if len(self._given) == self.size:
            given, self._given = [self._given[k] for k in range(self.size)], {}
            names = {name for name, _, _ in given}
            if len(names) > 1:
                raise RuntimeError(f"all ranks must call the same collective. Received: {sorted(names)}")
            self.env.process(self._ring([v for _, v, _ in given], [event for _, _, event in given]))
        return met

    def _ring(self, vectors: list[Vector], events: list[Any]) -> Events:
        """Send n - 1 parts to the next rank to sum them, then n - 1 parts to distribute the sums."""
        n, part = self.size, vectors[0].nbytes / self.size
        for _ in range(2 * (n - 1)):
            ways = [self._topology.route(self._places[k], self._places[(k + 1) % n]) for k in range(n)]
            yield simpy.AllOf(self.env, [self._transfers.send(way, part) for way in ways])
        total = np.sum(np.stack(vectors), axis=0, dtype=vectors[0].dtype)
        for event in events:
            event.succeed(total)


class SimulatedComm(PackedComm):
    """The Comm of one rank."""

    eager_only = True  # one rank runs at a time, in its own thread

    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size
        self._turn, self._blocked = threading.Semaphore(0), threading.Semaphore(0)
        self._waits_for: Any = None
        self._answer: Any = None
        self.sent_bytes = 0  # by multicast; one copy for each receiver where the network has no multicast

    @property
    def now_s(self) -> float:
        """The simulated time in seconds."""
        return self._world.now_s

    @functools.cached_property
    def _packed(self) -> "Packed":
        from hfdt.collectives.adapters import Packed  # imports TensorFlow, which `sum_vector` does not need

        return Packed(self.sum_vector, self.rank, self.size)

    def multicast(self, packet: Vector, root: int, members: tuple[int, ...]) -> Vector:
        """Send or receive a packet, see Multicast. The sender does not wait; a receiver waits for the last byte."""
        if root != self.rank:
            received: Vector = self._wait(self._world.mail(root, self.rank).get())
            return received
        others = [k for k in members if k != root]
        if others:
            self.sent_bytes += packet.nbytes * self._world.multicast(packet, root, others)
        return packet

    def close(self) -> None:
        """Do nothing: multicasts hold no resources of their own."""

    def work(self, steps: float, draws: float = 1.0) -> None:
        """Advance this rank's time by that of `steps` training steps on its node; see Pace.seconds."""
        world = self._world
        self._wait(world.env.timeout(world.paces[self.rank].seconds(world.env.now, steps, draws)))

    def sum_vector(self, vector: Vector, name: str) -> Vector:
        """Add one NumPy vector over the ranks."""
        if self.size == 1:
            return vector
        total: Vector = self._wait(self._world.rendezvous(self.rank, name, vector))
        return total

    # -- one rank at a time --------------------------------------------------------------------------------------------
    def _wait(self, event: Any) -> Any:
        """Wait in the rank's thread until the clock reaches `event`; return the event's value."""
        self._waits_for = event
        self._blocked.release()
        self._turn.acquire()
        if self._world.failed:
            raise RuntimeError("another rank failed, or waits for a packet that no rank sends")
        return self._answer

    def live(self) -> Events:
        """The simulation process of the rank: let it run until it waits, then wait for that event, and repeat."""
        while (event := self._until_it_waits()) is not None:
            self._answer = yield event

    def _until_it_waits(self) -> Any:
        self._waits_for = None
        self._turn.release()
        self._blocked.acquire()
        return self._waits_for

    def run(self, work: Callable[["SimulatedComm"], None]) -> None:
        """Call `work` at the rank's first turn, in the rank's thread."""
        self._turn.acquire()
        try:
            work(self)
        finally:
            self._waits_for = None
            self._blocked.release()

    def release(self) -> None:
        """Let the rank's thread continue."""
        self._turn.release()


def on_simulated(world: SimulatedWorld, work: Callable[[SimulatedComm], Result]) -> list[Result]:
    """Run `work(comm)` on each rank and return the results by rank. The clock stops when the last rank ends.

    Raises:
        BaseException: The first error that a rank raised.
    """
    comms = [SimulatedComm(world, rank) for rank in range(world.size)]
    results: dict[int, Result] = {}
    raised: list[BaseException] = []

    def rank(comm: SimulatedComm) -> None:
        try:
            results[comm.rank] = work(comm)
        except BaseException as error:
            raised.append(error)
            world.fail()

    threads = [threading.Thread(target=c.run, args=(rank,), daemon=True) for c in comms]
    for thread, comm in zip(threads, comms, strict=True):
        thread.start()
        world.env.process(comm.live())
    world.env.run()
    if len(results) < world.size:
        world.fail()
    for thread, comm in zip(threads, comms, strict=True):  # ranks that still wait for an event raise RuntimeError
        comm.release()
        thread.join()
    if raised:
        raise raised[0]
    return [results[k] for k in range(world.size)]
