"""Starts mpirun for ranks of this host alone, so that only this user's processes can connect to its ports.

`python -I -S local_mpirun.py MPIRUN [ARGUMENT...] -np RANKS ...` runs mpirun as its child, and ends as that ends.

Open MPI's mpirun listens on TCP ports, one of them on every interface. Their protocols trust the user number that the
caller states (PMIx) or ask for none (PRRTE's daemons), and both can start programs: whoever can connect runs programs
as this user. No setting closes them. So this process gives each listening socket a packet filter (SO_ATTACH_FILTER,
which needs no privilege) that lets only those connections complete that the kernel lists as sockets of this user, and
none after all ranks have connected. It takes the sockets by pidfd_getfd (Linux 5.6), which a parent may do. Where the
system forbids that, as most containers do, mpirun runs without filters and its log says so.

A connection is held after its SYN until its owner is known: the caller's kernel repeats its first data after 0.2 s.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from fdt.security import TcpSocket, own_sockets, tcp_sockets

# Until mpirun listens; until START_S, less than the 0.2 s after which a held call is repeated; until all have connected
POLLS_S = 0.002, 0.1, 0.5
START_S = 30.0
STRANGER = "a process of another user connected to mpirun's port before it was filtered, so the run was ended"
UNFILTERED = "mpirun's ports are not filtered, other users of this machine and of its network can reach them"
FILTER_PORTS = "HFDT_FILTER_PORTS"  # "1": mpirun over hosts gets filters, and none runs without them
REFUSED = "HFDT_FILTER_PORTS=1 needs a system that lets a process filter its child's ports, so the run was ended"
HELD = "mpirun's filters hold a host's call, because it arrives from another address (NAT), so the run was ended"
_GETFD = 438  # the system call pidfd_getfd, by the same number on every architecture but Alpha
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
ENDINGS = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1  # do not end a process of this module before its child
_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_SYN = 0x02  # a flag in byte 13 of a TCP header
_IP_VERSION, _IP_SOURCE = 0xFFF00000, 0xFFF0000C  # SKF_NET_OFF + 0, + 12: in an IPv4 header
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _IF_EQUAL, _IF_SET, _AND, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x45, 0x54, 0x06
_ALL, _NONE = 0xFFFFFFFF, 0  # bytes of a packet that a filter lets pass
Caller = tuple[str, int]
Instruction = tuple[int, int, int, int]


def program(callers: Iterable[Caller], *, more: bool) -> list[Instruction]:
    """Return a classic BPF program that passes the packets of `callers`, and with `more` the SYN of any other."""
    made = [(_LOAD_BYTE, 0, 0, 13), (_IF_SET, 0, 1, _SYN), (_RETURN, 0, 0, _ALL if more else _NONE)]
    # An IPv6 header has a part of the source address, which its sender may choose, in the place of IPv4's.
    made += [(_LOAD_BYTE, 0, 0, _IP_VERSION), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 1, 0, 0x40), (_RETURN, 0, 0, _NONE)]
    for address, port in callers:
        number = int.from_bytes(bytes.fromhex(address), sys.byteorder)
        made += [(_LOAD_WORD, 0, 0, _IP_SOURCE), (_IF_EQUAL, 0, 3, number)]
        made += [(_LOAD_HALF, 0, 0, 0), (_IF_EQUAL, 0, 1, port), (_RETURN, 0, 0, _ALL)]
    return [*made, (_RETURN, 0, 0, _NONE)]


def attach(listening: socket.socket, instructions: Sequence[Instruction]) -> None:
    """Give a socket a filter in place of its earlier one. Raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    listening.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(instructions), ctypes.addressof(code))
    )


class StrangerConnected(Exception):
    """A process of another user connected to a port before its filter was there."""


class CallHeld(Exception):
    """The filters hold a call of this user's for ever. The text is for the user."""


class PortFilters:
    """The filters of a process's listening sockets.

    Args:
        pid: A child of this process.
        expected: How many connections to one port to let through.
    """

    def __init__(self, pid: int, expected: int) -> None:
        self._pid, self._expected = pid, expected
        self.vouched: set[Caller] = set()  # of other hosts, whose daemons' starters know them for this user's
        self._handle = os.pidfd_open(pid)
        self._filtered: dict[int, socket.socket] = {}  # by inode
        self._callers: dict[int, list[Caller]] = {}  # by inode
        self.listed: set[Caller] = set()  # by the kernel as connected, or about to be, when the filters were updated
        self.held: set[Caller] = set()  # those of them whose connections are held
        self.done = False  # whether all connections were let through

    @property
    def begun(self) -> bool:
        """Whether the process listens."""
        return bool(self._filtered)

    def update(self) -> None:
        """Filter new listening sockets and let new connections of this user through.

        Raises:
            StrangerConnected: Another user's process is connected already.
            OSError: The system does not let this process take the sockets.
        """
        sockets = tcp_sockets(self._pid)
        descriptors = own_sockets(self._pid)
        ports = {s.local[1] for s in sockets if s.listens and s.inode in descriptors}
        calls = [s for s in sockets if s.local[1] in ports and not s.listens]
        self.listed, self.held = {s.remote for s in calls}, {s.remote for s in calls if s.begins} - self.vouched
        for each in sockets:
            if each.listens and each.inode in descriptors:
                if each.inode not in self._filtered:
                    self._take(each, descriptors[each.inode])
                self._admit(each, sockets)

    def release(self) -> None:
        """Remove the filters: one that is no longer updated would hold this user's connections, too."""
        for taken in self._filtered.values():
            with contextlib.suppress(OSError):
                taken.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def close(self) -> None:
        """Release the sockets; their filters stay."""
        for each in self._filtered.values():
            each.close()
        os.close(self._handle)

    def _take(self, each: TcpSocket, descriptor: int) -> None:
        number = ctypes.CDLL(None, use_errno=True).syscall(_GETFD, self._handle, descriptor, 0)
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        taken = self._filtered[each.inode] = socket.socket(fileno=number)
        attach(taken, program([], more=True))
        sockets = tcp_sockets(self._pid)
        connected = {s.remote for s in sockets if s.local[1] == each.local[1] and s.remote[1]}
        if connected - {s.local for s in self._own(sockets, each)} - self.vouched:
            raise StrangerConnected

    def _own(self, sockets: Iterable[TcpSocket], to: TcpSocket) -> list[TcpSocket]:
        """Return this user's sockets that are connected to `to`, or about to be. A closed one is listed as root's."""
        return [s for s in sockets if s.inode and s.uid == os.geteuid() and s.remote[1] == to.local[1]]

    def _admit(self, each: TcpSocket, sockets: Iterable[TcpSocket]) -> None:
        own = {s.local for s in self._own(sockets, each)}
        callers = sorted(c for c in self.vouched | own if len(c[0]) == len("7F000001"))
        if callers != self._callers.get(each.inode):
            self._callers[each.inode] = callers
            attach(self._filtered[each.inode], program(callers, more=True))
        if len(callers) >= self._expected:
            self.done = True

    def end(self) -> None:
        """Let no further connection through."""
        for inode, taken in self._filtered.items():
            attach(taken, program(self._callers.get(inode, []), more=False))


def watch(
    process: "subprocess.Popen[bytes]", ranks: int, reported: Callable[[PortFilters], Iterable[Caller]] = lambda _: ()
) -> None:
    """Filter the ports of `process` until all ranks have connected.

    Kills it where a stranger came first, or a call of this user's is held.

    Args:
        process: mpirun.
        ranks: The number of ranks.
        reported: Returns callers on other hosts that are this user's, new ones since the last call. May raise CallHeld.
    """
    filters = PortFilters(process.pid, ranks)
    ended = select.poll()
    ended.register(filters._handle, select.POLLIN)
    deadline = time.monotonic() + START_S
    try:
        while not filters.done:
            filters.vouched.update(reported(filters))
            filters.update()
            if ended.poll(1000 * POLLS_S[2 if time.monotonic() > deadline else filters.begun]):
                return
        filters.end()
    except StrangerConnected:
        process.kill()
        print(STRANGER, file=sys.stderr)
    except CallHeld as error:
        process.kill()
        print(error, file=sys.stderr)
    except OSError:
        filters.release()
        raise
    finally:
        filters.close()


def start_child(argv: Sequence[str], stdout: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a process that ends with this one. Signals that it gets, too, do not end this one."""
    for number in ENDINGS:
        signal.signal(number, lambda *_: None)
    libc = ctypes.CDLL(None)
    return subprocess.Popen(argv, stdout=stdout, preexec_fn=lambda: libc.prctl(_DEATH_SIGNAL, signal.SIGTERM))


def run_filtered(
    argv: Sequence[str],
    expected: int,
    reported: Callable[[PortFilters], Iterable[Caller]] = lambda _: (),
    *,
    needed: bool = False,
) -> int:
    """Run a process whose ports are filtered where the system permits it; return its exit code.

    Args:
        argv: The command.
        expected: How many connections to one port to let through.
        reported: As in `watch`.
        needed: Kill the process where the system does not permit filters.
    """
    process = start_child(argv)
    try:
        watch(process, expected, reported)
    except (OSError, AttributeError) as error:
        if needed:
            process.kill()  # where it is ending by itself, this changes nothing
        if not needed or process.wait() == -signal.SIGKILL:
            print(f"{REFUSED if needed else UNFILTERED}: {error}", file=sys.stderr, flush=True)
    code = process.wait()
    if code == -signal.SIGKILL:
        shutil.rmtree(directory_of(process.pid), ignore_errors=True)
    return code


def directory_of(mpirun: int) -> Path:
    """Return the directory that an mpirun with this process number removes at its end."""
    return Path(tempfile.gettempdir(), f"ompi.{mpirun}")


def filters_asked_for() -> bool:
    """Return whether the user asks for filters, without which mpirun must not run."""
    return os.environ.get(FILTER_PORTS, "0") not in ("", "0")


def end_as(code: int) -> NoReturn:
    """End this process as a child ended that has this return code."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    for number in ENDINGS:  # at its end the interpreter sets the default action in place of a handler
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def main(*argv: str) -> None:
    """Run mpirun and end as it ends."""
    end_as(run_filtered(argv, int(argv[argv.index("-np") + 1]), needed=filters_asked_for()))


if __name__ == "__main__":
    main(*sys.argv[1:])
