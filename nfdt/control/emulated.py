"""Peers as processes on emulated hosts: the interface of simulated.py, with real time and real links.

Commands and acknowledgements use a Unix socket, which is on no link; tensors are sent from host to host by TCP.
"""

import contextlib
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, overload

import cloudpickle

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, address_of
from fdt.launch.namespaces import counters
from fdt.network import EMULATED_CLUSTER_VARIABLE, Cluster, ClusterNode
from fdt.network.topology import topology_of
from fdt.security.auth import TOKEN_VARIABLE
from fdt.service.member import ENGINE_VARIABLE
from fdt.signals import held_back
from fdt.supervise.outcome import died_of, tail
from fdt.typing import Tensor
from nfdt.control.host import ADDRESS_VARIABLE, SEED_VARIABLE, listening
from nfdt.control.store import check_given, check_steps

POLL_S = 0.25
START_S = 60.0
STOPPED_S = 25.0  # longest time for which a peer's process may be stopped
STANDSTILL_S = 25.0  # longest time without an event while every peer only waits: its process may stand still


class EmulatedAck:
    """Acknowledgement of a command, as Ack (simulated.py)."""

    def __init__(self, peers: "EmulatedPeers", kind: str, command: str) -> None:
        self._peers, self.kind, self.command = peers, kind, command
        self.done = False
        self.value: Any = None

    def answer(self, value: Any, *, done: bool) -> None:
        """Take the peer's answer; `done`: the command has not failed."""
        self.value, self.done = value, done

    def wait(self) -> None:
        """Wait until the command is executed."""
        self._peers.wait(self)


class EmulatedPeer:
    """One node, as Peer (simulated.py)."""

    def __init__(self, peers: "EmulatedPeers", node: ClusterNode) -> None:
        self.index, self.name, self.layer = node.index, node.name, node.group.layer
        self.address = address_of(node.index + 1)
        self._peers = peers
        self.connection: Connection

    def connect(self, connection: Connection) -> None:
        """Take the connection to the peer's process."""
        self.connection = connection

    @property
    def above(self) -> "EmulatedPeer | None":
        """The parent in a tree, the edge of a terminal, the cloud of an edge."""
        index = self._peers.topology.above.get(self.index)
        return None if index is None else self._peers[index]

    @property
    def below(self) -> list["EmulatedPeer"]:
        """The peers whose `above` is this peer."""
        return [peer for peer in self._peers if peer.above is self]

    def __repr__(self) -> str:
        return f"<peer {self.name}>"

    def compute(
        self, into: str | Sequence[str], function: Callable[..., Tensor], *names: str, steps: float = 1.0
    ) -> EmulatedAck:
        """Apply a function to tensors, as Peer.compute."""
        check_steps(steps)
        return self._send("compute", f"compute {into}", into, function, names, steps)

    def send(self, to: "EmulatedPeer | Sequence[EmulatedPeer]", name: str, into: str | None = None) -> EmulatedAck:
        """Send a tensor, as Peer.send. TCP has no multicast, so each of several receivers gets its own copy."""
        receivers = [to] if isinstance(to, EmulatedPeer) else list(to)
        return self._send("send", f"send {name}", [peer.address for peer in receivers], name, into or name)

    def wait(self, name: str) -> EmulatedAck:
        """Wait for a tensor, as Peer.wait."""
        return self._send("wait", f"wait for {name}", name)

    def read(self, name: str) -> Tensor:
        """Return a tensor after all earlier commands."""
        ack = self._send("read", f"read {name}", name)
        ack.wait()
        return ack.value

    def _send(self, kind: str, command: str, *arguments: Any) -> EmulatedAck:
        ack = EmulatedAck(self._peers, kind, f"{self.name}: {command}")
        packed = cloudpickle.dumps(arguments)  # may fail: the command is registered afterwards
        number = self._peers.expect(self, ack)
        try:
            self.connection.send_bytes(cloudpickle.dumps((number, kind, packed)))
        except OSError:  # the peer has ended: the wait names the cause
            ack.wait()
        return ack


class EmulatedPeers(Sequence[EmulatedPeer]):
    """All peers of the cluster that `file` describes. `now_s`: real seconds since all peers started.

    Args:
        cluster: Nodes and links.
        file: The cluster file, which the peers' processes read too.
        run_dir: Directory of logs and the socket.
        seed: Seed of the peers' random times.
        modules: Directory of the program's own modules.
    """

    def __init__(self, cluster: Cluster, file: Path, run_dir: Path, seed: int, modules: Path) -> None:
        self.cluster, self.topology, self._run_dir = cluster, topology_of(cluster), run_dir
        self._peers = [EmulatedPeer(self, node) for node in cluster.nodes]
        self._changed = threading.Condition()
        self._missing: list[dict[int, EmulatedAck]] = [{} for _ in self._peers]  # by peer: pending commands
        self._numbers = self._acks = 0
        self._error = ""
        self._network = EmulatedNetwork(self.topology)
        try:
            self._start(file, seed, modules)
        except BaseException:
            self.close()
            raise
        self._began = time.monotonic()

    @overload
    def __getitem__(self, index: int) -> EmulatedPeer: ...
    @overload
    def __getitem__(self, index: slice) -> list[EmulatedPeer]: ...
    def __getitem__(self, index: int | slice) -> EmulatedPeer | list[EmulatedPeer]:
        return self._peers[index]

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, layer: str) -> list[EmulatedPeer]:
        """Return the peers of a layer: "terminal", "edge" or "cloud"."""
        return [peer for peer in self._peers if peer.layer == layer]

    @property
    def now_s(self) -> float:
        """Real seconds since all peers started."""
        return time.monotonic() - self._began

    @property
    def links(self) -> dict[str, int]:
        """Bytes that crossed each host's interface, as the kernel counts them: headers and retries included."""
        self._check()  # a peer that has ended has no interface
        crossed = {peer.name: counters(pid) for peer, pid in zip(self._peers, self._processes.pids, strict=True)}
        ways = (("up", "sent"), ("down", "received"))
        return {f"{name} {way}": counts[key] for name, counts in crossed.items() for way, key in ways}

    @property
    def bytes_sent(self) -> int:
        """Bytes that all hosts have sent."""
        return sum(count for name, count in self.links.items() if name.endswith(" up"))

    def wait(self, *acks: EmulatedAck) -> None:
        """Wait for all of `acks`; without any, for every command."""
        self._until(lambda: all(ack.done for ack in acks) if acks else not any(self._missing))

    def first(self, *acks: EmulatedAck) -> EmulatedAck:
        """Wait for one of `acks` and return it."""
        check_given(acks)
        self._until(lambda: any(ack.done for ack in acks))
        return next(ack for ack in acks if ack.done)

    def expect(self, peer: EmulatedPeer, ack: EmulatedAck) -> int:
        """Register a command that is about to be sent. Return its number."""
        with self._changed:
            self._numbers += 1
            self._missing[peer.index][self._numbers] = ack
            return self._numbers

    def close(self) -> None:
        """End the peers and remove the emulated network."""
        if hasattr(self, "_processes"):
            self._processes.stop()
        self._network.close()

    def _start(self, file: Path, seed: int, modules: Path) -> None:
        key = secrets.token_urlsafe(32)
        path = str(self._run_dir / "control.sock")
        env = {ENGINE_VARIABLE: f"unix:{path}", TOKEN_VARIABLE: key, SEED_VARIABLE: str(seed)}
        env |= {EMULATED_CLUSTER_VARIABLE: str(file.resolve()), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH")]))
        task = Task("peer", (sys.executable, "-m", "nfdt.control.host"), len(self._peers), env)
        with listening(path, len(self._peers), key.encode()) as listener:
            launcher = EmulatedLauncher(self._run_dir, self._network, self._host, self._environment)
            with held_back():
                self._processes = launcher.start(task)
            threading.Thread(target=self._greet, args=(listener,), daemon=True).start()
            deadline = time.monotonic() + START_S
            with self._changed:
                while missing := [peer.name for peer in self._peers if not hasattr(peer, "connection")]:
                    self._changed.wait(POLL_S)
                    self._check()
                    if time.monotonic() > deadline:
                        raise UserError(f"not all peers started within {START_S:g} s. Missing: {', '.join(missing)}")

    def _host(self, role: str, rank: int) -> EmulatedHost:
        return EmulatedHost(self._peers[rank].index, self._peers[rank].name, self._peers[rank].address)

    def _environment(self, rank: int) -> dict[str, str]:
        return {ADDRESS_VARIABLE: self._peers[rank].address}

    def _greet(self, listener: Listener) -> None:
        with self._failing("a peer did not attach"):
            for _ in self._peers:
                connection = listener.accept()
                peer = self._peers[int(connection.recv_bytes())]
                with self._changed:
                    peer.connect(connection)
                    self._changed.notify_all()
                threading.Thread(target=self._listen, args=(peer,), daemon=True).start()

    def _listen(self, peer: EmulatedPeer) -> None:
        with self._failing(f"peer {peer.name} sent an answer that cannot be read"):
            while True:
                answer = peer.connection.recv_bytes()
                with self._changed:
                    self._take(peer, *cloudpickle.loads(answer))
                    self._changed.notify_all()

    def _take(self, peer: EmulatedPeer, number: int, packed: bytes, error: str, detail: str) -> None:
        ack = self._missing[peer.index].pop(number)
        self._acks += 1
        try:
            ack.answer(cloudpickle.loads(packed), done=not error)
        except Exception as broken:
            error = f"{type(broken).__name__}: {broken}"
        if error and not self._error:
            self._error = f"`{ack.command}` failed: {error}"
            if detail:
                print(detail, file=sys.stderr)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Within the context, an error ends the program's waits. `_check` names the cause of a connection's end."""
        try:
            yield
        except (EOFError, OSError):
            return
        except Exception as error:
            with self._changed:
                self._error = self._error or f"{what}: {type(error).__name__}: {error}"
                self._changed.notify_all()

    def _until(self, true: Callable[[], bool]) -> None:
        acks, since, stopped_s = -1, time.monotonic(), time.monotonic()
        polled_s, stopped = -math.inf, list[int]()
        with self._changed:
            self._check()
            while not true():
                self._changed.wait(POLL_S)
                self._check()
                now_s = time.monotonic()
                if now_s - polled_s >= POLL_S:  # it reads a file of every process
                    polled_s, stopped = now_s, self._processes.stopped()
                if not stopped:
                    stopped_s = now_s
                elif now_s - stopped_s > STOPPED_S:
                    name = self._peers[stopped[0]].name
                    raise UserError(f"peer {name} has been stopped for {STOPPED_S:g} s, by SIGSTOP or a debugger")
                if acks != self._acks or stopped or not self._all_wait():
                    acks, since = self._acks, now_s
                elif now_s - since > STANDSTILL_S:
                    stuck = next(ack for missing in self._missing for ack in missing.values())
                    raise UserError(f"`{stuck.command}` never ends")

    def _all_wait(self) -> bool:
        """Return whether every peer with a command only waits for a tensor, and no tensor is being sent."""
        firsts = [next(iter(missing.values())) for missing in self._missing if missing]
        return all(ack.kind == "wait" for ack in firsts)

    def _check(self) -> None:
        for ended in self._processes.exits():
            name, log = self._peers[ended.rank or 0].name, self._run_dir / f"peer-{ended.rank}.log"
            cause, last = died_of(ended.cause, log), tail(log, lines=1)  # the log is removed with the run
            more = f"; its last line: {last}" if last and last not in cause else ""
            raise UserError(f"peer {name} was lost: {cause}{more}")
        if self._error:
            raise UserError(self._error)
