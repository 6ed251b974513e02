"""Starts mpirun for ranks of several hosts, so that only this user's processes can connect to mpirun and its daemons.

`python -I -S hosts_mpirun.py MPIRUN [ARGUMENT...]` runs mpirun as its child, and ends as that ends. Its ports get the
filters of local_mpirun.py. mpirun starts a daemon on each other host by ssh, and the daemon calls mpirun's port. Who
calls from another host is not known to the kernel here, so three processes of this file work together:

- `agent SOCKET HOST COMMAND` stands where mpirun expects ssh, under every scheduler. Once mpirun's ports are filtered,
  it has ssh, or srun inside a Slurm allocation, run the third around the daemon's command.
- `daemon COMMAND`, on the other host, filters the daemon's ports, and prints the address and port from which this
  user's daemon calls. Its output goes through ssh or srun, which proves who prints.
- The agent sends what is printed to a socket in a private directory. The first process then lets that connection
  through.

Up to 64 daemons call mpirun only, and not one another (the fan-out of PRRTE's tree), so no host calls a daemon's port.
A daemon that mpirun's host sees under another address (NAT) is held, and the first process ends the run: the daemon's
report names a call that the kernel here does not list. Without filters such a run may train, so users ask for them by a
variable (HFDT_FILTER_PORTS).
As long as mpirun runs, new connections are let through under the same conditions. The ports of MPI itself, by which
ranks exchange tensors, are not filtered.
"""

import contextlib
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from fdt.launch.hosts import argv_on
from fdt.launch.local_mpirun import (
    FILTER_PORTS,
    HELD,
    REFUSED,
    STRANGER,
    Caller,
    CallHeld,
    PortFilters,
    StrangerConnected,
    end_as,
    run_filtered,
    start_child,
)
from fdt.security import own_sockets, tcp_sockets
from fdt.signals import shielded

CALLS_FROM = "calls mpirun from "  # begins the line of a daemon's address
STARTER, AGENT = "PRTE_MCA_plm", "PRTE_MCA_plm_ssh_agent"
ATTACHED = "PRTE_MCA_prte_leave_session_attached"
WITHOUT_IPV6 = "PRTE_MCA_oob_tcp_disable_ipv6_family"
PREFIX = "fdt-mpirun-"  # of a directory's name, before this process's number
MOST_HOSTS = 64  # of which each daemon is started by mpirun itself
POLL_S = 0.02, 0.5  # until the daemon has called mpirun, and then
HELD_S = 5.0  # after which a call that is reported, and has not arrived, is taken for one from another address
ANY = 1 << 30  # connections to one port
REMEDY = f"use addresses that all hosts see alike, or {FILTER_PORTS}=0, which leaves mpirun's ports open"
_URI = re.compile(r"tcp://[\d.,]+:(\d+)")


def run_mpirun(*argv: str) -> int:
    """Run mpirun with filters; return its exit code."""
    directory = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp")  # a short path without spaces and colons
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        reports.bind(f"{directory}/s")
        reports.setblocking(False)
        agent = (sys.executable, "-I", "-S", __file__, "agent", f"{directory}/s", "-x")  # mpirun drops the last
        os.environ[AGENT], os.environ[STARTER] = " ".join(agent), "ssh"
        os.environ[WITHOUT_IPV6] = os.environ[ATTACHED] = (
            "1"  # a daemon stays a child of the process that filters its ports
        )
        waiting: list[Path] = []
        calls = Calls()

        def reported(filters: PortFilters) -> set[Caller]:
            for path in waiting:  # the ports that its daemon will call were filtered after it had begun to wait
                path.unlink(missing_ok=True)
            waiting[:] = Path(directory).glob("agent-*")
            return calls.check(_callers(reports), filters)

        return run_filtered(argv, ANY, reported, needed=True)
    finally:
        reports.close()
        Path(directory, "s").unlink(missing_ok=True)  # agents see that mpirun has ended
        shutil.rmtree(directory, ignore_errors=True)


class Calls:
    """The hosts whose daemons have reported a call that has not arrived at mpirun's host."""

    def __init__(self) -> None:
        self._missing: dict[str, tuple[float, set[Caller]]] = {}  # by host: since when, and the calls
        self._arrived: set[str] = set()

    def check(self, reports: Iterable[tuple[str, Caller]], filters: PortFilters) -> set[Caller]:
        """Return the callers of new reports.

        Raises:
            CallHeld: No call of a host has arrived from the address that its daemon reports, and another call is held.
        """
        new, now = set(), time.monotonic()
        for host, caller in reports:
            new.add(caller)
            if host not in self._arrived:
                self._missing.setdefault(host, (now, set()))[1].add(caller)
        for host, (since, callers) in list(self._missing.items()):
            if callers & filters.listed:
                del self._missing[host]
                self._arrived.add(host)
            elif now - since > HELD_S and filters.held - new:
                own, seen = map(_addresses, (callers, filters.held - new))
                raise CallHeld(f"{HELD}: {host} has the address {own}, and a connection arrives from {seen}; {REMEDY}")
        return new


def _addresses(callers: Iterable[Caller]) -> str:
    """Return the callers' addresses as a user knows them; two of many."""
    numbers = {bytes.fromhex(address) for address, _ in callers if len(address) == len("7F000001")}
    texts = sorted(socket.inet_ntoa(n[::-1] if sys.byteorder == "little" else n) for n in numbers)
    return ", ".join(texts[:2]) or "an IPv6 address"


def _callers(reports: socket.socket) -> Iterator[tuple[str, Caller]]:
    while True:
        try:
            host, address, port = reports.recv(400).decode().split(":")
        except OSError:
            return
        yield host, (address, int(port))


def run_agent(path: str, *argv: str) -> int:
    """Run a daemon's command on a host, and pass on from where the daemon calls; return its exit code.

    It waits until mpirun's ports are filtered: a daemon that called before would be taken for a stranger.
    """
    waits, mpirun = Path(path).with_name(f"agent-{os.getpid()}"), os.getppid()
    waits.touch()
    while waits.exists() and os.getppid() == mpirun:
        time.sleep(POLL_S[0])
    if not Path(path).exists():
        return 1  # mpirun has ended
    host, *command = argv[1:] if argv[0] == "-x" else argv
    around = (sys.executable, "-I", "-S", __file__, "daemon", " ".join(command))  # as ssh joins words
    process = start_child(argv_on(host, around), stdout=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # mpirun ends ssh so
    assert process.stdout is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports, process.stdout as output:
        for line in output:
            if line.startswith(CALLS_FROM.encode()):
                with contextlib.suppress(OSError):  # mpirun has ended
                    reports.sendto(f"{host}:".encode() + line.removeprefix(CALLS_FROM.encode()).strip(), path)
            else:
                os.write(1, line)
    return process.wait()


def run_daemon(command: str) -> int:
    """Run a daemon's command, filter its ports, and print from where it calls mpirun; return its exit code."""
    shell = "sh"
    with contextlib.suppress(KeyError):  # a user without an entry
        shell = pwd.getpwuid(os.getuid()).pw_shell or shell  # mpirun writes for that one
    with shielded() if "SLURM_JOB_ID" in os.environ else contextlib.nullcontext():  # Slurm signals it, too
        process = start_child((shell, "-c", command))
    ports = {int(port) for port in _URI.findall(command)}
    filters: PortFilters | None = None
    reported: set[Caller] = set()
    starter = select.poll()
    starter.register(1, 0)
    while process.poll() is None:
        pid = _listening_child(process.pid)
        if starter.poll(0):  # ssh has ended, and a daemon whose first call was held would stay without end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid or process.pid, signal.SIGTERM)
        for caller in _calls(pid, ports) - reported if pid else ():
            print(f"\n{CALLS_FROM}{caller[0]}:{caller[1]}", flush=True)
            reported.add(caller)
        try:
            if pid:
                filters = filters or PortFilters(pid, ANY)
                filters.update()
        except StrangerConnected:
            print(STRANGER, file=sys.stderr, flush=True)
            os.kill(pid, signal.SIGKILL)
        except (OSError, AttributeError) as error:
            if _listens(pid):  # else it is ending
                print(f"{REFUSED}: {error}", file=sys.stderr, flush=True)
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S[bool(reported)])
    return process.returncode


def _listening_child(pid: int) -> int:
    """Return the process that listens: this one, or the nearest that it has started; 0 where there is none."""
    if _listens(pid):
        return pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # ended meanwhile
        return 0
    return next(filter(None, map(_listening_child, map(int, children))), 0)


def _calls(pid: int, ports: set[int]) -> set[Caller]:
    """Return the ends of the complete connections that a process has to these ports."""
    try:
        own = own_sockets(pid)
    except OSError:
        return set()
    called = (s for s in tcp_sockets(pid) if s.inode in own and s.remote[1] in ports)
    return {s.local for s in called if not s.listens and not s.begins}


def _listens(pid: int) -> bool:
    try:
        own = own_sockets(pid)
    except OSError:
        return False
    return any(s.listens and s.inode in own for s in tcp_sockets(pid))


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    if first == "agent":
        end_as(run_agent(*rest))
    end_as(run_daemon(*rest) if first == "daemon" else run_mpirun(first, *rest))
