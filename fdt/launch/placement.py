"""Placement of an engine's members on the hosts of a run, after a pre-flight check of these hosts.

Each host must be reachable, have the same versions, and be able to call the others. The script's code need not be on
the hosts: capture sends it. The members trust each other by a certificate of the run.
"""

import datetime
import inspect
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fdt.doctor import GIB, Check
from fdt.errors import UserError
from fdt.launch import Launcher, probe
from fdt.launch.hosts import Host, allot, behind, is_here, last_line, ranks, start
from fdt.launch.over_hosts import HostsLauncher, OneByOneLauncher
from fdt.report import quantity
from fdt.security.auth import TlsIdentity

PORTS = 8  # free ports requested of each host, one for each server that it may get
CLOCK_S = 60.0  # largest accepted difference of clocks
ANSWER_S = 40.0  # seconds; Python may start slowly from a slow file system
ENGINE = "this machine"  # the engine's name in the hosts' reports


@dataclass
class Probed:
    """The result of one host. `route`: this machine's address as the host sees it. `ports`: free ports on the host."""

    host: Host
    route: str = ""
    ports: list[int] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.ok is not False for check in self.checks)


@dataclass
class _HostProbe:
    """The connection to one host's probe process."""

    process: "subprocess.Popen[str]"
    facts: dict[str, Any] = field(default_factory=dict)
    offset_s: float = 0.0
    failed: str = ""

    def read_facts(self) -> None:
        """Read the probe's first line: the facts of its host, and the offset of the host's clock."""
        self.facts = self.receive()
        self.offset_s = self.facts.get("clock", 0.0) - time.time()

    def receive(self) -> dict[str, Any]:
        """Return the probe's next line; {} where none arrives, with the reason in `failed`."""
        assert self.process.stdout is not None and self.process.stderr is not None
        patience = threading.Timer(ANSWER_S, self.process.kill)
        patience.start()
        # A host's shell may print a greeting first.
        line = next((line for line in iter(self.process.stdout.readline, "") if line.startswith("{")), "")
        patience.cancel()
        try:
            facts = json.loads(line)
            return facts if isinstance(facts, dict) else {}
        except ValueError:
            self.process.kill()
            errors = last_line(self.process.stderr.read())
            self.failed = errors or f"no answer within {ANSWER_S:g} s"
            return {}

    def send(self, what: object) -> None:
        assert self.process.stdin is not None
        try:
            print(json.dumps(what), file=self.process.stdin, flush=True)
        except OSError:  # it has ended: hear() finds the reason
            pass

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def probe_hosts(hosts: Sequence[Host], unneeded: Collection[str] = ()) -> list[Probed]:
    """Check all hosts at the same time. `unneeded`: components that a host may lack or have in another version."""
    with socket.create_server(("", 0)) as listening:
        threading.Thread(target=_answer, args=(listening,), daemon=True).start()
        argv = [sys.executable, "-c", inspect.getsource(probe), str(PORTS)]
        talks = [_HostProbe(start(host.name, argv)) for host in hosts]
        try:
            with ThreadPoolExecutor(len(talks)) as pool:
                list(pool.map(_HostProbe.read_facts, talks))
            reached = _calls(hosts, talks, listening.getsockname()[1])
        finally:
            for talk in talks:
                talk.end()
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
    versions = probe.facts(0, [])["versions"]
    mine = {name: version for name, version in versions.items() if name not in unneeded}
    return [
        Probed(host, _route(host, talk), talk.facts.get("free", []), list(_checks(talk, calls, mine)))
        for host, talk, calls in zip(hosts, talks, reached, strict=True)
    ]


def demand(hosts: Sequence[Host], unneeded: Collection[str] = ()) -> list[Probed]:
    """Check hosts as `probe_hosts` does. When one is not ready, print the failed checks and raise UserError."""
    from fdt.doctor import report

    found = probe_hosts(hosts, unneeded)
    bad = [one for one in found if not one.ok]
    if bad:
        report("hosts", [check for check in table(found) if check.ok is False], _console())
        names = ", ".join(one.host.name for one in bad)
        raise UserError(
            f"not ready: {names} ({len(bad)} of {quantity(len(found), 'host')}): {failure_of(bad[0])}; `doctor -H` "
            "shows all checks"
        )
    return found


def table(found: Sequence[Probed]) -> list[Check]:
    """Return all hosts' checks as one table."""
    return [Check(f"{one.host.name}: {c.component}", c.found, c.ok, c.advice) for one in found for c in one.checks]


def _calls(hosts: Sequence[Host], talks: Sequence[_HostProbe], port: int) -> list[dict[str, str]]:
    """Return, for each host, the errors of its calls to the other hosts and to this machine."""
    others = {host.name: [host.name, talk.facts["port"]] for host, talk in zip(hosts, talks, strict=True) if talk.facts}

    def ask(both: tuple[Host, _HostProbe]) -> dict[str, str]:
        host, talk = both
        if not talk.facts:
            return {}
        talk.send({**others, ENGINE: [_route(host, talk), port]})
        return talk.receive()

    with ThreadPoolExecutor(len(talks)) as pool:
        return list(pool.map(ask, zip(hosts, talks, strict=True)))


def _route(host: Host, talk: _HostProbe) -> str:
    """Return this machine's address as the host sees it: the source of its ssh; without ssh, the host name."""
    if is_here(host.name):
        return host.name
    return str(talk.facts.get("caller") or socket.gethostname()).removeprefix("::ffff:")


def _checks(talk: _HostProbe, calls: dict[str, str], mine: dict[str, str]) -> Iterator[Check]:
    if not talk.facts:
        yield Check(
            "reachable",
            talk.failed,
            False,
            "ssh HOST (srun under Slurm) must work without a password, and HOST must have this Python",
        )
        return
    yield Check("reachable", "yes", True)
    for name, ours in mine.items():
        theirs = talk.facts["versions"].get(name, "")
        advice = "" if theirs == ours else f"this machine has {ours or 'none'}: install the same version on all hosts"
        yield Check(name, theirs, theirs == ours, advice)
    clock = f"{talk.offset_s:+.1f} s"
    near = abs(talk.offset_s) <= CLOCK_S
    yield Check("clock", clock, near, "" if near else "synchronize the clocks (NTP)")
    yield Check("/dev/shm", f"{talk.facts['shm'] / GIB:.1f} GiB free", True)
    blocked = {name: why for name, why in calls.items() if why} if calls else {ENGINE: talk.failed}
    for name, why in blocked.items():
        yield Check(f"connects to {name}", why, False, _closed(name, str(talk.facts["caller"])))
    if not blocked:
        yield Check("connects to the others", "yes", True)


def _closed(name: str, caller: str) -> str:
    if name == ENGINE and ":" in caller.removeprefix("::ffff:"):
        return f"hosts connect to this machine by IPv4, but ssh used {caller}: give the hosts as IPv4 addresses"
    return "TCP connections between the hosts must be possible: check firewalls and host names"


def _answer(listening: socket.socket) -> None:
    while True:
        try:
            listening.accept()[0].close()
        except OSError:
            return


def failure_of(one: Probed) -> str:
    """Return the first failed check of a host that is not ready, and what to do."""
    check = next(check for check in one.checks if check.ok is False)
    return f"{check.component}: {check.found or 'none'} ({check.advice})"


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


HOROVOD = "Horovod"  # its name in the pre-flight check; only HFDT's ranks use it
MEMBER = "member.fdt"  # subject of every certificate that a run's authority signs
VALID = datetime.timedelta(days=90)  # longer than any run


@dataclass(frozen=True)
class Placement:
    """The hosts of a run, checked, and the certificate that its members share."""

    found: Sequence[Probed]
    identity: TlsIdentity

    @property
    def hosts(self) -> list[Host]:
        """The hosts, without the results of their checks."""
        return [one.host for one in self.found]

    def workers(self, run_dir: Path, count: int, *, singly: bool = False) -> Launcher:
        """Return a launcher of `count` workers on the first slots.

        Args:
            run_dir: The directory of the logs.
            count: The number of workers.
            singly: Start each worker by its own ssh, without MPI.

        Raises:
            UsageError: There are fewer slots.
        """
        return self._launcher(run_dir, allot(self.hosts, count), singly)

    def servers(self, run_dir: Path, workers: int, count: int, *, singly: bool = False) -> Launcher:
        """Return a launcher of `count` servers, on the slots that the workers leave free if there are any."""
        return self._launcher(run_dir, behind(self.hosts, workers, count), singly)

    def addresses(self, workers: int, count: int) -> list[str]:
        """Return the addresses where the servers listen; a restarted server keeps its port."""
        free = {one.host.name: list(one.ports) for one in self.found}
        try:
            return [f"{name}:{free[name].pop()}" for name in ranks(behind(self.hosts, workers, count))]
        except IndexError:
            raise UserError(f"a host has at most 8 servers. Received: --ps {count}; give more hosts") from None

    def _launcher(self, run_dir: Path, hosts: Sequence[Host], singly: bool) -> Launcher:
        routes = {one.host.name: one.route for one in self.found}
        if singly:
            return OneByOneLauncher(run_dir, hosts, routes)
        return HostsLauncher(run_dir, hosts, routes)


def place(hosts: Sequence[Host], workers: int, servers: int = 0, unneeded: Collection[str] = (HOROVOD,)) -> Placement:
    """Check the hosts that get a member, and return a placement on them.

    Args:
        hosts: All hosts of the run.
        workers: The number of workers.
        servers: The number of servers.
        unneeded: Components that the hosts need not have.

    Raises:
        UserError: A host is not ready; a table of the failed checks is printed.
    """
    taken = {host.name for host in [*allot(hosts, workers), *behind(hosts, workers, servers)]}
    return Placement(demand([host for host in hosts if host.name in taken], unneeded), run_identity())


def run_identity() -> TlsIdentity:
    """Return a certificate of a new authority. The authority's key is not kept."""
    from fdt.security.authority import Authority

    authority = Authority("run", VALID)
    certificate, key = authority.sign([MEMBER])
    return TlsIdentity(certificate, key, authority.certificate, MEMBER)
