"""Peers on the simulated clock, and their commands.

The control program takes no simulated time. The clock runs while the program waits (`ack.wait`, `peers.first`, `read`,
and at its end). A peer executes one command after another; it continues while a tensor that it sends is on its way.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, overload

import numpy as np
import simpy

from fdt.errors import UserError
from fdt.network import Cluster, ClusterNode, Pace
from fdt.network.topology import topology_of
from fdt.network.transfers import Transfers, run_until
from nfdt.control.store import Store, Tensor, check_given, check_steps
from nfdt.tree import leaves

Events = Generator[Any, Any, None]


class Ack:
    """Acknowledgement of a command. `command`: the command as text for messages."""

    def __init__(self, peers: "Peers", command: str) -> None:
        self._peers, self.command = peers, command
        self.event = peers.env.event()

    @property
    def done(self) -> bool:
        """Whether the command is executed."""
        return bool(self.event.processed)

    def wait(self) -> None:
        """Run the simulation until the command is executed."""
        self._peers.wait(self)


class Peer:
    """One node. `index`, `name` and `layer` come from the cluster file; commands set everything else."""

    def __init__(self, peers: "Peers", node: ClusterNode, pace: Pace) -> None:
        self.index, self.name, self.layer = node.index, node.name, node.group.layer
        self._peers, self._pace = peers, pace
        self._store = Store(self.name)
        self._commands: deque[tuple[Ack, Callable[[], Events]]] = deque()
        self._woken = peers.env.event()
        self.doing: Ack | None = None
        peers.env.process(self._live())

    @property
    def above(self) -> "Peer | None":
        """The parent in a tree, the edge of a terminal, the cloud of an edge."""
        index = self._peers.topology.above.get(self.index)
        return None if index is None else self._peers[index]

    @property
    def below(self) -> list["Peer"]:
        """The peers whose `above` is this peer."""
        return [peer for peer in self._peers if peer.above is self]

    def __repr__(self) -> str:
        return f"<peer {self.name}>"

    def compute(
        self, into: str | Sequence[str], function: Callable[..., Tensor], *names: str, steps: float = 1.0
    ) -> Ack:
        """Apply `function` to the peer's tensors `names`, and store the result or results as its tensors `into`.

        Args:
            into: Name of the result, or names of several results.
            function: Function of the tensors. Its arguments are read only: return new ones.
            names: Names of the arguments.
            steps: Simulated duration on this node, in training steps; 0: none.
        """
        check_steps(steps)

        def run() -> Events:
            yield self._peers.env.timeout(self._pace.seconds(self._peers.env.now, steps))
            self._store.compute(into, function, names)

        return self._command(f"compute {into}", run)

    def send(self, to: "Peer | Sequence[Peer]", name: str, into: str | None = None) -> Ack:
        """Send the tensor `name`. The acknowledgement follows its arrival.

        Args:
            to: One receiver or several. With multicast links a tensor to several receivers crosses each link once.
            name: Name of the tensor.
            into: Name at the receivers; None: `name`.
        """
        receivers = [to] if isinstance(to, Peer) else list(to)
        ack = Ack(self._peers, f"{self.name}: send {name} to {', '.join(peer.name for peer in receivers)}")

        def run() -> Events:
            self._peers.env.process(self._peers.transfer(self, receivers, self._store.get(name), into or name, ack))
            yield self._peers.env.timeout(0)

        self._command(f"send {name}", run)
        return ack

    def wait(self, name: str) -> Ack:
        """Continue when a tensor `name` has arrived. Each wait takes one, in the order of arrival, and stores it."""

        def run() -> Events:
            while not self._store.take(name):
                self._woken = self._peers.env.event()
                yield self._woken

        return self._command(f"wait for {name}", run)

    def read(self, name: str) -> Tensor:
        """Return the peer's tensor after all earlier commands. Reading uses no link and no simulated time."""
        self._command(f"read {name}", self._nothing).wait()
        return self._store.get(name)

    def deliver(self, name: str, tensor: Tensor) -> None:
        """Receive a tensor from a link."""
        self._store.deliver(name, tensor)
        self._wake()

    def _nothing(self) -> Events:
        yield self._peers.env.timeout(0)

    def _command(self, command: str, run: Callable[[], Events]) -> Ack:
        ack = Ack(self._peers, f"{self.name}: {command}")
        self._commands.append((ack, run))
        self._wake()
        return ack

    def _live(self) -> Events:
        while True:
            while not self._commands:
                self.doing = None
                self._woken = self._peers.env.event()
                yield self._woken
            self.doing, run = self._commands.popleft()
            try:
                yield from run()
            except UserError as error:
                raise UserError(f"`{self.doing.command}` failed: {error}") from None
            self.doing.event.succeed()

    def _wake(self) -> None:
        if not self._woken.triggered:
            self._woken.succeed()


class Peers(Sequence[Peer]):
    """All peers of a cluster, in the order of the cluster file. `now_s`: simulated seconds."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.cluster, self.env = cluster, simpy.Environment()
        self.topology = topology_of(cluster)
        self._transfers = Transfers(self.env, self.topology)
        self._peers = [Peer(self, node, Pace(node, cluster.step_s, (seed,))) for node in cluster.nodes]
        self.bytes_sent = 0

    @overload
    def __getitem__(self, index: int) -> Peer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Peer]: ...
    def __getitem__(self, index: int | slice) -> Peer | list[Peer]:
        return self._peers[index]

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, layer: str) -> list[Peer]:
        """Return the peers of a layer: "terminal", "edge" or "cloud"."""
        return [peer for peer in self._peers if peer.layer == layer]

    @property
    def now_s(self) -> float:
        """Simulated seconds. Raises UserError where they are no finite number."""
        if not math.isfinite(self.env.now):
            raise UserError("the simulated time is too long: a step, a speed or a link of the cluster file is too slow")
        return float(self.env.now)

    @property
    def links(self) -> dict[str, int]:
        """Bytes sent over each direction of each link."""
        return dict(zip(self.topology.names, self._transfers.sent_bytes, strict=True))

    def wait(self, *acks: Ack) -> None:
        """Run the simulation until all of `acks` have arrived; without any, until every command is executed."""
        if acks:
            self._run(simpy.AllOf(self.env, [ack.event for ack in acks]), acks)
        else:
            self.env.run()
            self._check_idle()

    def first(self, *acks: Ack) -> Ack:
        """Run the simulation until one of `acks` has arrived. Return it, or the first in the list if several have."""
        check_given(acks)
        self._run(simpy.AnyOf(self.env, [ack.event for ack in acks]), acks)
        return next(ack for ack in acks if ack.event.triggered)

    def transfer(self, sender: Peer, to: Sequence[Peer], tensor: Tensor, into: str, ack: Ack) -> Events:
        """Send `tensor` to each of `to`."""
        nbytes, groups = nbytes_of(tensor), [[peer] for peer in to]
        if self.cluster.multicast and to:
            groups = [list(to)]
        self.bytes_sent += nbytes * len(groups)
        arrivals = []
        for group in groups:
            route = self.topology.multicast(sender.index, [peer.index for peer in group])
            arrivals.append(self.env.process(self._deliver(self._transfers.send(route, nbytes), group, into, tensor)))
        yield simpy.AllOf(self.env, arrivals)
        ack.event.succeed()

    def _deliver(self, arrival: Any, group: Sequence[Peer], into: str, tensor: Tensor) -> Events:
        yield arrival
        for peer in group:
            peer.deliver(into, tensor)

    def _run(self, until: Any, acks: Sequence[Ack]) -> None:
        if not run_until(self.env, until):
            self._check_idle()
            waiting = next(ack for ack in acks if not ack.done)
            raise UserError(f"the program waits for `{waiting.command}`, which never ends")

    def _check_idle(self) -> None:
        stuck = [peer.doing.command for peer in self._peers if peer.doing is not None]
        if stuck:
            more = f" (and {len(stuck) - 1} more)" if len(stuck) > 1 else ""
            raise UserError(f"`{stuck[0]}`{more} never ends")


def nbytes_of(tensor: Tensor) -> int:
    """Return the bytes of all arrays in a tree."""
    return sum(int(np.prod(array.shape)) * np.dtype(_dtype(array)).itemsize for array in leaves(tensor))


def _dtype(array: Any) -> Any:
    return getattr(array.dtype, "as_numpy_dtype", array.dtype)
