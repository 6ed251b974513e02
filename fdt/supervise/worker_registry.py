"""The worker registry, the engine's side of MemberService: one inbox for all members' messages, one outbox for each.

Members may attach late, as the import of TensorFlow takes seconds. Their commands wait in the outbox until then.
"""

import contextlib
import os
import queue
import shutil
import signal
import socket
import tempfile
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
from fdt.security.auth import TlsIdentity, new_token
from fdt.service.blobs import BlobServicer
from fdt.service.transport import bind, new_server, stop_server
from fdt.supervise.processes import ElasticWorkers, WorkerJoined, WorkerLeft

Outbox = queue.SimpleQueue[Command | None]


@dataclass(frozen=True)
class StreamLost:
    """A member's stream ended without an Exit command. `outbox`: that member's, not its replacement's."""

    outbox: Outbox


@dataclass(frozen=True)
class MemberMessage:
    """One message of a member."""

    role: str
    rank: int
    what: Event | StreamLost | WorkerJoined | WorkerLeft
    generation: int  # the registry's generation when the member attached


class WorkerRegistry(training_pb2_grpc.MemberServiceServicer):
    """The members that are attached to the engine, and their outboxes. Thread-safe.

    `members`: for each role, how many may attach. `inbox` holds MemberMessages, and other objects that its owner puts
    there. With an `identity`, the registry also listens for members of other hosts; `address` then holds both
    addresses, separated by a comma. `scratch`: a directory of the engine's members, removed with the registry.
    """

    def __init__(
        self,
        engine: str,
        run_dir: Path,
        blobs: LocalBlobs,
        members: Mapping[str, int],
        identity: TlsIdentity | None = None,
    ) -> None:
        self.token = new_token()
        self.run_dir = run_dir
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.attached: dict[tuple[str, int], Attached] = {}
        self._engine, self._blobs = engine, blobs
        self._nonce = blobs.put(b"hub")
        self.scratch = tempfile.mkdtemp(prefix="engine-", dir=blobs.directory)
        self._outboxes: dict[tuple[str, int], Outbox] = {}
        self._claims: dict[tuple[str, int], Outbox] = {}  # outboxes whose members have attached
        self.members = members
        self.elastic = ElasticWorkers()  # further workers that may attach
        self._lock = threading.Lock()
        self._leaving = False
        self.generation = 0  # how often all members were forgotten
        server = new_server(self.token, identity)
        training_pb2_grpc.add_MemberServiceServicer_to_server(self, server)
        training_pb2_grpc.add_BlobServiceServicer_to_server(BlobServicer(blobs), server)
        self.address = bind(server, f"unix:{self.scratch}/hub.sock")
        if identity is not None:
            self.address += "," + bind(server, "0.0.0.0:0", identity)
        server.start()
        self._server: grpc.Server | None = server

    def send(self, role: str, rank: int, command: Command) -> None:
        """Put a command into a member's outbox."""
        self._outbox(role, rank).put(command)

    def broadcast(self, role: str, size: int, command: Command) -> None:
        """Put a command into the outboxes of ranks 0 to size-1 of a role."""
        for rank in range(size):
            self.send(role, rank, command)

    def expect_leave(self) -> None:
        """Count no stream that ends from now on as lost."""
        self._leaving = True

    def holds(self, role: str, rank: int, outbox: Outbox) -> bool:
        """Return whether `outbox` is the current member's."""
        return self._outboxes.get((role, rank)) is outbox

    def forget(self, role: str, rank: int) -> None:
        """Drop the outbox of a lost member: later commands wait for its replacement."""
        with self._lock:
            outbox = self._outboxes.pop((role, rank), None)
            self.attached.pop((role, rank), None)
        if outbox is not None:
            outbox.put(None)

    # -- elastic workers -------------------------------------------------------------------------------------------
    def reserve(self, count: int) -> tuple[list[int], threading.Event]:
        """Return ranks for `count` more workers, and the event that is set when they are to leave.

        Raises:
            ValueError: There would be too many.
        """
        ranks, group = self.elastic.reserve(count, self.members["worker"])
        for rank in ranks:
            self.forget("worker", rank)  # drops commands for an earlier worker of this rank
        return ranks, group

    def release(self, ranks: Sequence[int], group: threading.Event) -> None:
        """Free the ranks of elastic workers that leave or have left."""
        for rank in self.elastic.release(ranks, group):
            self.release_worker(rank, "left")

    def release_worker(self, rank: int, how: str, why: str = "") -> None:
        """Ask this elastic worker to end, and ignore its later messages."""
        self.send("worker", rank, Command(exit=ExitCommand()))
        self.forget("worker", rank)
        self.inbox.put(MemberMessage("worker", rank, WorkerLeft(how, why), self.generation))

    def release_all(self) -> None:
        """Ask all elastic workers to end, as the engine's members end."""
        for rank in self.elastic.release_all():
            self.send("worker", rank, Command(exit=ExitCommand()))
            self.forget("worker", rank)

    def has_rank(self, role: str, rank: int) -> bool:
        """Return whether the rank is a launched member's or a current elastic worker's."""
        return rank < self.members.get(role, 0) or self.is_elastic(role, rank)

    def is_elastic(self, role: str, rank: int) -> bool:
        """Return whether the rank is a current elastic worker's."""
        return role == "worker" and rank in self.elastic

    def forget_members(self, members: Mapping[str, int]) -> None:
        """Drop the outboxes of launched members, which have ended, and ignore their unread messages.

        New members will attach in their place: for each role, as many as `members` says. Elastic workers stay: the
        engine cannot launch them.
        """
        with self._lock:
            self.members = members
            gone = [member for member in self._outboxes if not self.is_elastic(*member)]
            outboxes = [self._outboxes.pop(member) for member in gone]
            self.attached = {member: a for member, a in self.attached.items() if self.is_elastic(*member)}
            self.generation += 1
        for outbox in outboxes:
            outbox.put(None)
        self._leaving = False

    def is_remote(self, role: str, rank: int | None) -> bool:
        """Return whether this member has attached from another host."""
        attached = None if rank is None else self.attached.get((role, rank))
        return attached is not None and attached.host != socket.gethostname()

    def kill(self, role: str, rank: int) -> None:
        """Kill a member's process with SIGKILL, even if it is stopped. On another host only its launcher can end it."""
        attached = self.attached.get((role, rank))
        if attached is not None and not self.is_remote(role, rank):
            with contextlib.suppress(ProcessLookupError):
                os.kill(attached.pid, signal.SIGKILL)

    def kill_left(self) -> None:
        """Kill this host's members that still run, perhaps blocked in C++, after their launcher has been stopped.

        Each of mpirun's ranks leads a process group, so a SIGKILL to mpirun's group does not reach them.
        """
        local = [(member, a.pid) for member, a in self.attached.items() if not self.is_elastic(*member)]
        for member, pid in local:
            with contextlib.suppress(OSError):  # a zombie's environment is empty, and another process's is not ours
                if self.address.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    self.kill(*member)

    def close(self) -> None:
        """Stop the server. A second call has no effect."""
        self._leaving = True
        server, self._server = self._server, None  # the server refers to its handlers, which are of this object
        if server is None:
            return
        stop_server(server)
        self._blobs.drop(self._nonce)
        shutil.rmtree(self.scratch, ignore_errors=True)

    # -- MemberService ---------------------------------------------------------------------------------------------
    def Hello(self, request: HelloRequest, context: grpc.ServicerContext) -> HelloReply:
        return HelloReply(
            engine=self._engine,
            version=__version__,
            blobs=str(self._blobs.directory),
            nonce=self._nonce.id,
            run_dir=str(self.run_dir),
        )

    def Attach(self, request_iterator: Iterator[Event], context: grpc.ServicerContext) -> Iterator[Command]:
        first = next(request_iterator, Event())
        attached = first.attached
        role, rank = attached.role, attached.rank
        outbox = self._claimed(role, rank) if first.HasField("attached") else None
        if outbox is None:
            refusal = f"a process must attach once, with a role and rank of this engine. Received: {role} {rank}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal)
        assert outbox is not None  # abort raised
        generation = self.generation
        if not context.add_callback(lambda: self._ended(role, rank, outbox, generation)):
            with self._lock:  # the member has disconnected already: a replacement may attach
                self._claims.pop((role, rank), None)
            return
        self.attached[role, rank] = attached
        if self.is_elastic(role, rank):
            self.inbox.put(MemberMessage(role, rank, WorkerJoined(), generation))
        threading.Thread(
            target=self._read, args=(role, rank, request_iterator, outbox, generation), daemon=True
        ).start()
        yield from iter(outbox.get, None)

    def _read(self, role: str, rank: int, events: Iterator[Event], outbox: Outbox, generation: int) -> None:
        try:
            for event in events:
                event.rank = rank
                self.inbox.put(MemberMessage(role, rank, event, generation))
        except Exception:  # the stream broke: _ended reports it
            pass
        outbox.put(None)  # a member that closed its sending side has ended, even if the stream is open

    def _claimed(self, role: str, rank: int) -> Outbox | None:
        """Return the outbox of a member whose role and rank no other process has claimed, else None."""
        if not self.has_rank(role, rank):
            return None
        outbox = self._outbox(role, rank)
        with self._lock:
            if self._claims.get((role, rank)) is outbox:
                return None
            self._claims[role, rank] = outbox
        return outbox

    def _ended(self, role: str, rank: int, outbox: Outbox, generation: int) -> None:
        outbox.put(None)
        if not self._leaving and self.holds(role, rank, outbox):
            self.inbox.put(MemberMessage(role, rank, StreamLost(outbox), generation))

    def _outbox(self, role: str, rank: int) -> Outbox:
        with self._lock:
            return self._outboxes.setdefault((role, rank), queue.SimpleQueue())
