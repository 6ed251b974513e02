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
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cloudpickle

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, address_of
from fdt.network import EMULATED_CLUSTER_VARIABLE, Cluster, ClusterNode
from fdt.security.auth import TOKEN_VARIABLE
from fdt.service.member import ENGINE_VARIABLE
from fdt.signals import held_back, raise_held, undisturbed
from fdt.supervise import died_of, tail
from fdt.typing import Tensor
from nfdt.control.host import ADDRESS_VARIABLE, SEED_VARIABLE, listening
from nfdt.control.peer import ClusterPeer, ClusterPeers, check_given, check_steps

POLL_S = 0.25
START_S = 60.0
STOPPED_S = 25.0  # longest time for which a peer's process may be stopped
STANDSTILL_S = 25.0  # longest time without an event while every peer only waits: its process may stand still
END_S = 5.0  # longest time from the end of a peer's connection to the end of its process


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


class EmulatedPeer(ClusterPeer):
    """One node, as Peer (simulated.py)."""

    def __init__(self, peers: "EmulatedPeers", node: ClusterNode) -> None:
        super().__init__(peers, node)
        self.address = address_of(node.index + 1)
        self._peers = peers
        self.unsent: SimpleQueue[bytes] = SimpleQueue()  # commands; a full socket blocks the sending thread alone

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
        self._peers.register(self, ack, packed)
        return ack


class EmulatedPeers(ClusterPeers[EmulatedPeer]):
    """All peers of the cluster that `file` describes. `now_s`: real seconds since all peers started.

    Args:
        cluster: Nodes and links.
        file: The cluster file, which the peers' processes read too.
        run_dir: Directory of logs and the socket.
        seed: Seed of the peers' random times.
        modules: Directory of the program's own modules.
    """

    def __init__(self, cluster: Cluster, file: Path, run_dir: Path, seed: int, modules: Path) -> None:
        super().__init__(cluster, lambda node: EmulatedPeer(self, node))
        self._run_dir = run_dir
        self._changed = threading.Condition()
        self._missing: list[dict[int, EmulatedAck]] = [{} for _ in self._peers]  # by peer: pending commands
        self._attached: set[str] = set()  # names of peers whose processes have connected
        self._numbers = self._acks = 0
        self._error = ""
        self._network = EmulatedNetwork(self.topology)
        try:
            self._start(file, seed, modules)
        except BaseException:
            self.close()
            raise
        self._began = time.monotonic()

    @property
    def now_s(self) -> float:
        """Real seconds since all peers started."""
        return time.monotonic() - self._began

    @property
    def links(self) -> dict[str, int]:
        """Bytes that crossed each host's interface, as the kernel counts them: headers and retries included."""
        with held_back():
            self._check()
            crossed = self._network.counters()
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

    def register(self, peer: EmulatedPeer, ack: EmulatedAck, arguments: bytes) -> None:
        """Give a command, its arguments pickled, to the thread that sends commands to the peer."""
        with held_back(), self._changed:
            if self._error:
                self._check()
            self._numbers += 1
            self._missing[peer.index][self._numbers] = ack
            peer.unsent.put(cloudpickle.dumps((self._numbers, ack.kind, arguments)))

    def close(self) -> None:
        """End the peers and remove the emulated network."""
        with undisturbed():
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
        launcher = EmulatedLauncher(
            self._run_dir,
            self._network,
            lambda _, rank: EmulatedHost(rank, self._peers[rank].name, self._peers[rank].address),
            lambda rank: {ADDRESS_VARIABLE: self._peers[rank].address},
        )
        with held_back(), listening(path, len(self._peers)) as listener:
            self._processes = launcher.start(task)
            threading.Thread(target=self._greet, args=(listener, key.encode()), daemon=True).start()
            deadline = time.monotonic() + START_S
            with self._changed:
                while missing := [peer.name for peer in self._peers if peer.name not in self._attached]:
                    self._changed.wait(POLL_S)
                    raise_held()
                    self._check()
                    if time.monotonic() > deadline:
                        raise UserError(f"not all peers started within {START_S:g} s. Missing: {', '.join(missing)}")

    def _greet(self, listener: Listener, key: bytes) -> None:
        with contextlib.suppress(OSError):  # the listener is closed, because a peer was lost
            for _ in self._peers:
                threading.Thread(target=self._listen, args=(listener.accept(), key), daemon=True).start()

    def _listen(self, connection: Connection, key: bytes) -> None:
        with self._failing("a peer did not attach"):
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            peer = self._peers[int(connection.recv_bytes())]
            threading.Thread(target=self._send_commands, args=(peer, connection), daemon=True).start()
            with self._changed:
                self._attached.add(peer.name)
                self._changed.notify_all()
            with self._failing(f"peer {peer.name} sent an answer that cannot be read", peer):
                while True:
                    self._take_answer(peer, *cloudpickle.loads(connection.recv_bytes()))

    def _send_commands(self, peer: EmulatedPeer, connection: Connection) -> None:
        with self._failing(f"a command could not be sent to peer {peer.name}", peer):
            while True:
                connection.send_bytes(peer.unsent.get())

    def _take_answer(self, peer: EmulatedPeer, number: int, packed: bytes, error: str, detail: str) -> None:
        value = None
        try:
            value = cloudpickle.loads(packed)  # without the lock, because it runs code of the value's
        except BaseException as broken:  # SystemExit would end this thread alone
            error = error or f"{type(broken).__name__}: {broken}"
        if detail and not self._error:
            print(detail, end="", file=sys.stderr)
        with self._changed:
            ack = self._missing[peer.index].pop(number)
            self._acks += 1
            ack.answer(value, done=not error)
            if error:
                self._end(f"`{ack.command}` failed: {error}")
            self._changed.notify_all()

    @contextlib.contextmanager
    def _failing(self, what: str, peer: EmulatedPeer | None = None) -> Iterator[None]:
        """Within the context, an error ends the program's waits. `_check` names the cause of a process's end."""
        try:
            yield
        except (EOFError, OSError):
            if peer is not None:
                time.sleep(END_S)
                self._end(f"peer {peer.name} has closed its connection to the program, and has not ended")
        except BaseException as error:
            self._end(f"{what}: {type(error).__name__}: {error}")

    def _end(self, error: str) -> None:
        """End the program's waits with an error, unless there is one."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _until(self, true: Callable[[], bool]) -> None:
        with held_back(), self._changed:
            self._check()
            stopped, idle = _Since(), _Since()
            polled_s, ranks = -math.inf, list[int]()
            while not true():
                self._changed.wait(POLL_S)
                raise_held()
                self._check()
                if time.monotonic() - polled_s >= POLL_S:  # it reads a file of every process
                    polled_s, ranks = time.monotonic(), self._processes.stopped()
                if stopped.lasts_s(ranks[0] if ranks else None) > STOPPED_S:
                    name = self._peers[ranks[0]].name
                    raise UserError(f"peer {name} has been stopped for {STOPPED_S:g} s, by SIGSTOP or a debugger")
                if idle.lasts_s(self._acks if not ranks and self._all_wait() else None) > STANDSTILL_S:
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


class _Since:
    """The time for which a state lasts."""

    def __init__(self) -> None:
        self._state: int | None = None
        self._began_s = 0.0

    def lasts_s(self, state: int | None) -> float:
        """Return how long the state has been this one, in seconds; 0 for None."""
        if state is None or state != self._state:
            self._state, self._began_s = state, time.monotonic()
        return time.monotonic() - self._began_s
