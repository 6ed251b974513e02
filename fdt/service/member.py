"""A member's side of MemberService: the connection of a worker or server process to its engine, and its job's data."""

import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from fdt import __version__
from fdt.blobs import Blobs
from fdt.environment import log_to
from fdt.job import Data, FeedData, JobSpec
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Attached, Command, Event, FeedBatch, FeedWanted, Output, Standing, Where
from fdt.rpc.training_pb2 import HelloRequest
from fdt.security import auth
from fdt.security.auth import TOKEN_VARIABLE, credentials
from fdt.service import blame
from fdt.service.blobs import reachable_blobs
from fdt.service.handlers import StreamBroken
from fdt.service.host_bootstrap import forget
from fdt.service.transport import open_channel
from fdt.signals import PREEMPTED_BY

if TYPE_CHECKING:
    from fdt.data import Source  # imports TensorFlow, which a worker imports in its own time

ENGINE_VARIABLE = "FDT_ENGINE"
SIZE_VARIABLE = "FDT_SIZE"
RANK_VARIABLES = ("FDT_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")
ANYWHERE = "0.0.0.0"
REACH_S = 10.0  # seconds; the engine listens before it starts its members
ENGINE_GONE = 70  # exit code EX_SOFTWARE; no process is left to read it


class Member:
    """This process as a member of its engine.

    Attributes:
        role: "worker" or "server".
        rank: The rank within the role.
        size: The number of members of this role.
        engine: The engine's name.
        run_dir: The directory of the run's logs.
        blobs: The engine's blob store.
    """

    def __init__(
        self, role: str, rank: int, size: int, channel: grpc.Channel, token: str, *, remote: bool = False
    ) -> None:
        self.role, self.rank, self.size, self.token = role, rank, size, token
        metadata = credentials(token)
        stub = training_pb2_grpc.MemberServiceStub(channel)
        hello = stub.Hello(HelloRequest(version=__version__), metadata=metadata, timeout=30)
        self.engine: str = hello.engine
        self.run_dir = Path(hello.run_dir)
        self.blobs: Blobs = reachable_blobs(hello, channel, metadata)
        self._on_feed: Callable[[FeedBatch], None] = lambda _: None
        self._suspended = threading.Event()
        self._counts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._outgoing: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[Command] = queue.SimpleQueue()
        # Another host has no such directory: the launcher collects the member's output.
        log = None if remote else self.run_dir / f"{role}-{rank}.log"
        attached = Attached(role=role, rank=rank, pid=os.getpid(), host=socket.gethostname(), log=str(log or ""))
        self._outgoing.put(Event(attached=attached))
        self._stream = stub.Attach(iter(self._outgoing.get, None), metadata=metadata)
        if log is not None:
            log_to(log)
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def attach(cls, role: str) -> "Member":
        """Attach to the engine that the environment names. The process ends by itself when the engine is lost."""
        shield()
        rank = next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)
        token = os.environ.pop(TOKEN_VARIABLE)  # child processes must not inherit it
        if auth.TLS_VARIABLE in os.environ:
            auth.adopt_identity(auth.TlsIdentity.loads(os.environ.pop(auth.TLS_VARIABLE)))
        address = reachable_address(os.environ[ENGINE_VARIABLE])
        size, remote = int(os.environ[SIZE_VARIABLE]), not address.startswith("unix:")
        channel = open_channel(address)
        if not _is_ready(channel, REACH_S):
            print(f"{role} {rank}: no engine answered at {address} within {REACH_S:g} s", file=sys.stderr)
            _end()
        member = cls(role, rank, size, channel, token, remote=remote)
        if rank == 0 and role == "worker":
            sys.stdout = _Forwarded(member)
        return member

    def pass_feeds_to(self, offer: Callable[[FeedBatch], None]) -> None:
        """Call `offer` with each FeedBatch, in the reading thread, even while the main thread trains."""
        self._on_feed = offer

    @property
    def suspended(self) -> bool:
        """Whether the engine has asked for a commit that ends the epoch."""
        return self._suspended.is_set()

    def report_counts(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Report by heartbeat the collectives that this member has entered and left.

        Args:
            counts: Returns both; called in the reading thread, even while the main thread trains.
        """
        self._counts = counts

    def commands(self) -> Iterator[Command]:
        """Yield the engine's commands except FeedBatch (see `pass_feeds_to`) and Where; stop at Exit."""
        while True:
            command = self._incoming.get()
            if command.HasField("exit"):
                return
            yield command

    def send(self, event: Event) -> None:
        """Send the engine an event, without waiting. A report of training also gets this process's memory."""
        if event.HasField("progress"):
            event.progress.memory_bytes = resident_bytes()
        elif event.HasField("epoch_end"):
            event.epoch_end.memory_bytes = resident_bytes()
        self._outgoing.put(event)

    def _standing(self, asked: Where) -> Standing:
        standing = Standing(log=str(self.run_dir / f"{self.role}-{self.rank}.log"))
        try:
            if asked.dump:
                blame.dump()
            standing.entered, standing.left = self._counts()
            standing.place = blame.place()
        except Exception:  # this thread must continue
            traceback.print_exc()
        return standing

    def _read(self) -> None:
        try:
            for command in self._stream:
                if command.HasField("feed"):
                    self._on_feed(command.feed)
                elif command.HasField("where"):
                    self.send(Event(job=command.job, standing=self._standing(command.where)))
                else:
                    if command.HasField("suspend"):
                        self._suspended.set()
                    elif command.HasField("setup"):  # the request was an earlier job's, which ended before its commit
                        self._suspended.clear()
                    self._incoming.put(command)
        except (grpc.RpcError, StreamBroken):
            pass
        except Exception:  # an unreadable feed: the engine reports a lost member and shows this log
            traceback.print_exc()
        # The main thread may be blocked in a collective forever, even after Exit, so this thread ends the process.
        _end()


def _is_ready(channel: grpc.Channel, within_s: float) -> bool:
    """Wait until the channel is connected. gRPC's own wait ends when the wall clock jumps."""
    ready = threading.Event()

    def notice(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()

    channel.subscribe(notice, try_to_connect=True)
    try:
        return ready.wait(within_s)
    finally:
        channel.unsubscribe(notice)


def shield() -> None:
    """Give SIGTERM and SIGUSR1 no effect on this process: its command decides when it ends.

    Processes that it forks are not shielded.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in PREEMPTED_BY:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTED_BY)
    os.register_at_fork(after_in_child=lambda: [signal.signal(number, signal.SIG_DFL) for number in PREEMPTED_BY])


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process, of this one by default; 0 where it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _end() -> NoReturn:
    """End this process because its engine is lost, perhaps killed; remove its files on this host first."""
    forget()
    os._exit(ENGINE_GONE)


def reach(addresses: str) -> str:
    """Return another member's address for this process: the first on the engine's host, the last elsewhere.

    The socket may not exist yet. A member that listens on all interfaces runs on the engine's host.
    """
    engine, known = reachable_address(os.environ[ENGINE_VARIABLE]), addresses.split(",")
    if engine.startswith("unix:"):
        return known[0]
    return known[-1].replace(f"{ANYWHERE}:", f"{engine.rpartition(':')[0]}:")


def reachable_address(addresses: str) -> str:
    """Return an engine's address for this process: its Unix socket on its own host, the last address elsewhere.

    The token is sent to the Unix socket without TLS, so neither the socket nor its directory may be another user's.
    """
    known = addresses.split(",")
    return next((a for a in known if is_our_socket(Path(a.removeprefix("unix:")))), known[-1])


def is_our_socket(path: Path) -> bool:
    """Return whether `path` is a Unix socket that this user owns, in a directory that this user owns."""
    try:
        return path.is_socket() and {path.stat().st_uid, path.parent.stat().st_uid} == {os.geteuid()}
    except OSError:  # the directory is another user's
        return False


def fed_data(spec: JobSpec) -> list[FeedData]:
    """Return the data that the client draws. Batches may still arrive when their job has ended."""
    return [data for data in (spec.data, spec.validation) if isinstance(data, FeedData)]


def open_feeds(spec: JobSpec, member: Member, want: Callable[[FeedWanted], None]) -> dict[str, Any]:
    """Return the queues of those data by name, which from now on receive the member's batches.

    Args:
        spec: The job.
        member: This process.
        want: Requests batches of the client.
    """
    from fdt.data import Feed

    found = {data.name: Feed(data.name, member.blobs, want) for data in fed_data(spec)}
    member.pass_feeds_to(lambda batch: found[batch.name].offer(batch) if batch.name in found else None)
    return found


def open_data(spec: JobSpec, data: Data, blobs: Blobs, queues: Mapping[str, Any]) -> "Source":
    """Return the source of a job's training or validation data.

    Args:
        spec: The job.
        data: One of its data.
        blobs: The store of the data's arrays.
        queues: Result of `open_feeds`.
    """
    from fdt.data import open_source

    return open_source(
        data,
        spec.fit,
        blobs,
        spec.seed,
        training=data is spec.data,
        options=spec.options,
        feed=queues.get(data.name) if isinstance(data, FeedData) else None,
        flavor=spec.program.flavor,
    )


class _Forwarded:
    """sys.stdout of rank 0: sends the client the script's own output during training, once."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._line = ""
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        self._line += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self._line = self._line, ""
        if text:
            self._member.send(Event(output=Output(text=text)))

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1
