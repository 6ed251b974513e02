"""The engine's side of MemberService: one inbox for what all members say, one outbox for each.

Members may attach late (TensorFlow takes seconds to import): commands wait in the outbox until they do.
"""

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from fdt import __version__
from fdt.blobs import LocalBlobs
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Attached, Command, Event
from fdt.rpc.session_pb2 import Exit as ExitCommand
from fdt.rpc.training_pb2 import HelloReply, HelloRequest
from fdt.service.auth import new_token
from fdt.service.blobs import BlobServicer
from fdt.service.guests import Came, Guests, Left
from fdt.service.tls import Identity
from fdt.service.transport import bind, new_server

Outbox = queue.SimpleQueue[Command | None]


@dataclass(frozen=True)
class Lost:
    """A member's stream ended although nobody had told it to exit. `outbox`: that member's, not its replacement's."""

    outbox: Outbox


@dataclass(frozen=True)
class Arrival:
    """One thing a member said."""

    role: str
    rank: int
    what: Event | Lost | Came | Left
    crew: int  # the hub's when it attached


class Hub(training_pb2_grpc.MemberServiceServicer):
    """Members attach here. Thread-safe. `inbox` holds Arrivals, and what else its owner puts beside them.

    With an `identity` it listens for other hosts' members too; `address` then holds both of its addresses.
    """

    def __init__(self, engine: str, run_dir: Path, blobs: LocalBlobs, identity: Identity | None = None) -> None:
        self.token = new_token()
        self.run_dir = run_dir
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.attached: dict[tuple[str, int], Attached] = {}
        self._engine, self._blobs = engine, blobs
        self._nonce = blobs.put(b"hub").id
        self._outboxes: dict[tuple[str, int], Outbox] = {}
        self._claims: dict[tuple[str, int], Outbox] = {}  # outboxes whose member has attached
        self.members: Mapping[str, int] = {}  # by role, how many may attach
        self.guests = Guests()  # workers that may attach besides
        self._lock = threading.Lock()
        self._leaving = False
        self.crew = 0  # how often all members were forgotten
        self._server = new_server(self.token, identity)
        training_pb2_grpc.add_MemberServiceServicer_to_server(self, self._server)
        training_pb2_grpc.add_BlobServiceServicer_to_server(BlobServicer(blobs), self._server)
        self.address = bind(self._server, f"unix:{blobs.directory}/hub.sock")
        if identity is not None:
            self.address += "," + bind(self._server, "0.0.0.0:0", identity)
        self._server.start()

    def send(self, role: str, rank: int, command: Command) -> None:
        self._outbox(role, rank).put(command)

    def broadcast(self, role: str, size: int, command: Command) -> None:
        for rank in range(size):
            self.send(role, rank, command)

    def expect_leave(self) -> None:
        """From now on a stream that ends is no loss."""
        self._leaving = True

    def holds(self, role: str, rank: int, outbox: Outbox) -> bool:
        """Whether it is the present member's."""
        return self._outboxes.get((role, rank)) is outbox

    def forget(self, role: str, rank: int) -> None:
        """Drop the outbox of a member that is gone: what is sent from now on waits for its replacement."""
        with self._lock:
            outbox = self._outboxes.pop((role, rank), None)
            self.attached.pop((role, rank), None)
        if outbox is not None:
            outbox.put(None)

    # -- guests ----------------------------------------------------------------------------------------------------
    def invite(self, count: int) -> tuple[list[int], threading.Event]:
        """Ranks for so many workers more, and what is set when they are to go. Raises ValueError: too many."""
        ranks, party = self.guests.invite(count, self.members["worker"])
        for rank in ranks:
            self.forget("worker", rank)  # what was for another of that rank
        return ranks, party

    def dismiss(self, ranks: Sequence[int], party: threading.Event) -> None:
        """They go, or have gone."""
        for rank in self.guests.dismiss(ranks, party):
            self.dismissed(rank, "left")

    def dismissed(self, rank: int, how: str, why: str = "") -> None:
        """This guest is to end; nothing that it still says is heard."""
        self.send("worker", rank, Command(exit=ExitCommand()))
        self.forget("worker", rank)
        self.inbox.put(Arrival("worker", rank, Left(how, why), self.crew))

    def dismiss_all(self) -> None:
        """The crew ends, and its guests with it."""
        for rank in self.guests.dismiss_all():
            self.send("worker", rank, Command(exit=ExitCommand()))
            self.forget("worker", rank)

    def has_place(self, role: str, rank: int) -> bool:
        """Whether this rank is a member's, or a present guest's."""
        return rank < self.members.get(role, 0) or self.is_guest(role, rank)

    def is_guest(self, role: str, rank: int) -> bool:
        return role == "worker" and rank in self.guests

    def forget_members(self) -> None:
        """Drop outboxes: the members are gone and others will attach in their place. What they said goes unheard.

        Guests are nobody's to launch: they stay.
        """
        with self._lock:
            gone = [member for member in self._outboxes if not self.is_guest(*member)]
            outboxes = [self._outboxes.pop(member) for member in gone]
            self.attached = {member: a for member, a in self.attached.items() if self.is_guest(*member)}
            self.crew += 1
        for outbox in outboxes:
            outbox.put(None)
        self._leaving = False

    def kill(self, role: str, rank: int) -> None:
        """End a member's process, stopped as it may be; on another host that is its launcher's work."""
        attached = self.attached.get((role, rank))
        if attached is not None and attached.host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):
                os.kill(attached.pid, signal.SIGKILL)

    def kill_left(self) -> None:
        """End this host's members that still live, stuck in C++ perhaps, when their launcher has been stopped.

        Each of mpirun's ranks leads a process group: SIGKILL to mpirun's does not reach them.
        """
        here = [(member, a.pid) for member, a in self.attached.items() if not self.is_guest(*member)]
        for member, pid in here:
            with contextlib.suppress(OSError):  # a zombie's environment is empty, and another process's is not ours
                if self.address.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    self.kill(*member)

    def close(self) -> None:
        self._leaving = True
        self._server.stop(grace=0.2)

    # -- MemberService ---------------------------------------------------------------------------------------------
    def Hello(self, request: HelloRequest, context: grpc.ServicerContext) -> HelloReply:
        return HelloReply(
            engine=self._engine,
            version=__version__,
            blobs=str(self._blobs.directory),
            nonce=self._nonce,
            run_dir=str(self.run_dir),
        )

    def Attach(self, request_iterator: Iterator[Event], context: grpc.ServicerContext) -> Iterator[Command]:
        first = next(request_iterator, Event())
        attached = first.attached
        role, rank = attached.role, attached.rank
        outbox = self._claimed(role, rank) if first.HasField("attached") else None
        if outbox is None:
            said = f"a member attaches once, by a role and rank of this engine's. Received: {role} {rank}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, said)
        assert outbox is not None  # abort raised
        crew = self.crew
        if not context.add_callback(lambda: self._ended(role, rank, outbox, crew)):
            with self._lock:  # gone before it was heard: another may come in its place
                self._claims.pop((role, rank), None)
            return
        self.attached[role, rank] = attached
        if self.is_guest(role, rank):
            self.inbox.put(Arrival(role, rank, Came(), crew))
        threading.Thread(target=self._read, args=(role, rank, request_iterator, outbox, crew), daemon=True).start()
        yield from iter(outbox.get, None)

    def _read(self, role: str, rank: int, events: Iterator[Event], outbox: Outbox, crew: int) -> None:
        try:
            for event in events:
                event.rank = rank
                self.inbox.put(Arrival(role, rank, event, crew))
        except Exception:  # the stream broke: _ended says so
            pass
        outbox.put(None)  # who says nothing more is not there, even where the stream is

    def _claimed(self, role: str, rank: int) -> Outbox | None:
        """The outbox of a member that nobody else has claimed."""
        if not self.has_place(role, rank):
            return None
        outbox = self._outbox(role, rank)
        with self._lock:
            if self._claims.get((role, rank)) is outbox:
                return None
            self._claims[role, rank] = outbox
        return outbox

    def _ended(self, role: str, rank: int, outbox: Outbox, crew: int) -> None:
        outbox.put(None)
        if not self._leaving and self.holds(role, rank, outbox):
            self.inbox.put(Arrival(role, rank, Lost(outbox), crew))

    def _outbox(self, role: str, rank: int) -> Outbox:
        with self._lock:
            return self._outboxes.setdefault((role, rank), queue.SimpleQueue())
