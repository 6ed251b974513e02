"""Peers on the simulated clock, and their commands.

The control program takes no simulated time. The clock runs while the program waits (`ack.wait`, `peers.first`, `read`,
and at its end). A peer executes one command after another; it continues while a tensor that it sends is on its way.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from fdt.errors import UserError
from fdt.network import Cluster, ClusterNode, Pace
from fdt.network.transfers import Transfers, run_until
from nfdt.control.peer import ClusterPeer, ClusterPeers, Store, Tensor, check_given, check_steps, flat_numbers

Events = Generator[Any, Any, None]


class _Failed(Exception):
    """The simulation has ended with the error that `Peers` keeps."""


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


class Peer(ClusterPeer):
    """One node. `index`, `name` and `layer` come from the cluster file; commands set everything else."""

    def __init__(self, peers: "Peers", node: ClusterNode, pace: Pace) -> None:
        super().__init__(peers, node)
        self._peers, self._pace = peers, pace
        self._store = Store(self.name)
        self._commands: deque[tuple[Ack, Callable[[], Events]]] = deque()
        self._woken = peers.env.event()
        self.doing: Ack | None = None
        peers.process(self._live())

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
            tensor = self._store.get(name)
            nbytes = sum(array.nbytes for array in flat_numbers(name, tensor)[1])
            self._peers.process(self._peers.transfer(self, receivers, tensor, nbytes, into or name, ack))
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


class Peers(ClusterPeers[Peer]):
    """All peers of a cluster, in the order of the cluster file. `now_s`: simulated seconds."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.env = simpy.Environment()
        super().__init__(cluster, lambda node: Peer(self, node, Pace(node, cluster.step_s, (seed,))))
        self._transfers = Transfers(self.env, self.topology)
        self._error: BaseException | None = None  # it ended the simulation
        self.bytes_sent = 0

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
        self._run(simpy.AllOf(self.env, [ack.event for ack in acks]) if acks else None, acks)
        if not acks:
            self._check_idle()

    def first(self, *acks: Ack) -> Ack:
        """Run the simulation until one of `acks` has arrived. Return it, or the first in the list if several have."""
        check_given(acks)
        self._run(simpy.AnyOf(self.env, [ack.event for ack in acks]), acks)
        return next(ack for ack in acks if ack.event.triggered)

    def transfer(self, sender: Peer, to: Sequence[Peer], tensor: Tensor, nbytes: int, into: str, ack: Ack) -> Events:
        """Send `tensor`, of `nbytes`, to each of `to`."""
        groups = [list(to)] if self.cluster.multicast and to else [[peer] for peer in to]
        arrivals = []
        for group in groups:
            route = self.topology.multicast(sender.index, [peer.index for peer in group])
            self.bytes_sent += nbytes if route.channels else 0  # a tensor for its sender alone uses no link
            arrivals.append(self.process(self._deliver(self._transfers.send(route, nbytes), group, into, tensor)))
        yield simpy.AllOf(self.env, arrivals)
        ack.event.succeed()

    def _deliver(self, arrival: Any, group: Sequence[Peer], into: str, tensor: Tensor) -> Events:
        yield arrival
        for peer in group:
            peer.deliver(into, tensor)

    def process(self, events: Events) -> Any:
        """Start a process of the simulation; return the event of its end. simpy would raise a copy of its error."""

        def run() -> Events:
            try:
                yield from events
            except GeneratorExit:  # the program has ended
                raise
            except BaseException as error:
                self._error = self._error or error
                raise _Failed from None

        return self.env.process(run())

    def _run(self, until: Any, acks: Sequence[Ack]) -> None:
        """Run the simulation. An exception leaves it incomplete, so each later call raises the same exception."""
        complete = False
        if self._error is None:
            try:
                complete = run_until(self.env, until)
            except BaseException as error:
                self._error = self._error or error
        if self._error is not None:
            raise self._error
        if not complete:
            self._check_idle()
            waiting = next(ack for ack in acks if not ack.done)
            raise UserError(f"the program waits for `{waiting.command}`, which never ends")

    def _check_idle(self) -> None:
        stuck = [peer.doing.command for peer in self._peers if peer.doing is not None]
        if stuck:
            more = f" (and {len(stuck) - 1} more)" if len(stuck) > 1 else ""
            raise UserError(f"`{stuck[0]}`{more} never ends")
