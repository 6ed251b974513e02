"""Launchers of members on the hosts of a run: all by one mpirun, or each by its own ssh, so that it can be replaced.

The members of the second launcher need no MPI. An ssh ends with its member; a member whose engine is lost ends by
itself.
"""

import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdt.errors import TooFew, UserError
from fdt.launch import GRACE_S, Exit, LocalProcesses, Task, spawn
from fdt.launch.hosts import EXPORTED, Host, allot, argv_on, everywhere, is_wish, launch_environment, ranks
from fdt.launch.mpirun import MpirunLauncher, MpirunProcesses
from fdt.service.host_bootstrap import ROOTS
from fdt.service.member import ENGINE_VARIABLE

BRING_S, REMOVE_S, ANSWER_S = 30.0, 5.0, 10.0
LEAST_REMOVE_S = 1.0  # added to the time for the end of mpirun: both wait for a host that is cut off
ROOM = 1 << 20  # bytes; the settings are mostly the user's environment


class HostsLauncher:
    """Starts a task's ranks on `hosts`, which have one slot for each rank.

    A second start leaves out the hosts that do not answer, and uses only as many slots of the others as the task needs.

    Args:
        run_dir: The directory of the logs.
        hosts: The hosts.
        routes: For each host, this machine's address as that host sees it.
    """

    def __init__(self, run_dir: Path, hosts: Sequence[Host], routes: Mapping[str, str]) -> None:
        self._run_dir, self._hosts, self._routes = run_dir, list(hosts), dict(routes)
        self._started = False

    def start(self, task: Task) -> "HostsProcesses":
        """Start a task.

        Raises:
            UserError: Files cannot be copied to a host.
            TooFew: The hosts that answer have too few slots.
        """
        hosts = self._left(task) if self._started else self._hosts
        brought = self.bring(task, [host.name for host in hosts])
        try:
            python, dash_m, *module = task.argv
            argv = (python, dash_m, "fdt.service.host_bootstrap", brought.name, task.role, *module)
            running = MpirunLauncher(self._run_dir, hosts).start(Task(task.role, argv, task.count))
            self._started = True
        except BaseException:
            brought.remove()
            raise
        return HostsProcesses(running, brought)

    def bring(self, task: Task, hosts: Sequence[str]) -> "HostFiles":
        """Copy the settings of `task`'s members to these hosts. Raises UserError."""
        name = f"fdt-{secrets.token_hex(16)}"
        texts = {host.name: self._bootstrap(task, host) for host in self._hosts if host.name in hosts}
        failed = everywhere(texts, ["sh", "-c", _copy_files(name, task.role)], BRING_S)
        brought = HostFiles(name, list(texts))
        if failed:
            brought.remove()
            host, errors = next(iter(failed.items()))
            raise UserError(f"{host} does not accept the settings of its workers: {errors}")
        return brought

    def _left(self, task: Task) -> list[Host]:
        """Return the slots for `task` on the hosts that answer."""
        gone = everywhere({host.name: "" for host in self._hosts}, ["true"], ANSWER_S)
        left = [host for host in self._hosts if host.name not in gone]
        slots = sum(host.slots for host in left)
        if slots < task.count:
            raise TooFew(
                f"no answer from {', '.join(gone)}, and the other hosts have slots for {slots} of {task.count} "
                "workers; --min-np lets fewer train",
                slots,
            )
        return allot(left, task.count)

    def _bootstrap(self, task: Task, host: Host) -> str:
        """Return a host's settings. `first`: the rank of its first server, whose address is there in any MPI order."""
        addresses = task.env[ENGINE_VARIABLE].replace("0.0.0.0:", f"{self._routes[host.name]}:")
        first = ranks(self._hosts).index(host.name) if task.role == "server" else None
        user = {name: value for name, value in os.environ.items() if is_wish(name)}
        task_env = {**task.env, ENGINE_VARIABLE: addresses}
        return json.dumps({"task": task_env, "user": user, "cwd": os.getcwd(), "first": first})


class HostFiles:
    """The directories that a launcher made on hosts."""

    def __init__(self, name: str, hosts: Sequence[str]) -> None:
        self.name, self._hosts = name, list(hosts)

    def remove(self, within_s: float = REMOVE_S) -> None:
        """Remove the directories."""
        hosts, self._hosts = self._hosts, []
        if hosts:
            paths = [f"{root}/{self.name}" for root in ROOTS]
            everywhere(dict.fromkeys(hosts, ""), ["rm", "-rf", *paths], within_s)


class HostsProcesses:
    """One mpirun, and its members' files on the hosts."""

    def __init__(self, ranks: MpirunProcesses, brought: HostFiles) -> None:
        self._ranks, self._brought = ranks, brought

    def exits(self) -> list[Exit]:
        """Implement Processes."""
        return self._ranks.exits()

    def reason(self) -> str:
        """Implement Explained."""
        return self._ranks.reason()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Implement Processes; remove the files on the hosts."""
        end = time.monotonic() + grace_s + LEAST_REMOVE_S
        self._ranks.stop(grace_s)
        self._brought.remove(max(LEAST_REMOVE_S, end - time.monotonic()))


def _copy_files(name: str, task: str) -> str:
    """Return shell code that copies its stdin into a new private file. An existing directory is an error.

    It writes zeros first to test for room: stdin can be read only once, and is secret, so it must not be in a command
    line.
    """
    roots, file = " ".join(shlex.quote(root) for root in ROOTS), f"$d/{task}.json"
    return (
        f"umask 077; for root in {roots}; do d=$root/{shlex.quote(name)}; "
        "mkdir $d || { test -e $d && exit 1; continue; }; "
        f"head -c {ROOM} /dev/zero > {file} && {{ cat > {file}; exit; }}; rm -r $d; done; exit 1"
    )


class OneByOneLauncher:
    """Starts members like HostsLauncher, each by its own ssh.

    A worker is replaced on its own host, else on the first other host that can be reached. A server stays on its host,
    because it is called at that host's address.
    """

    def __init__(self, run_dir: Path, hosts: Sequence[Host], routes: Mapping[str, str]) -> None:
        self._run_dir, self._hosts = run_dir, list(hosts)
        self._over = HostsLauncher(run_dir, hosts, routes)

    def start(self, task: Task) -> "OneByOneProcesses":
        """Implement Launcher."""
        return OneByOneProcesses(task, self._run_dir, self._hosts, self._over)


class OneByOneProcesses:
    """The processes of a task, one ssh for each rank, and their files on the hosts."""

    def __init__(self, task: Task, run_dir: Path, hosts: Sequence[Host], over: HostsLauncher) -> None:
        self._task, self._run_dir, self._over = task, run_dir, over
        self._where = ranks(hosts)
        self._names = list(dict.fromkeys(self._where))
        self._at: dict[str, str] = {}  # for each host, the directory of its newest files
        self._brought: list[HostFiles] = []
        try:
            self._bring(self._names)
            self._processes = LocalProcesses(task.role, task.count, self._spawn)
        except BaseException:
            self._remove()
            raise

    def exits(self) -> list[Exit]:
        """Implement Processes."""
        return self._processes.exits()

    def restart(self, rank: int) -> None:
        """Replace a rank's process. Raises UserError when no host can take it."""
        own = self._where[rank]
        failed: UserError | None = None
        others = [name for name in self._names if name != own and self._task.role != "server"]
        for host in (own, *others):
            try:
                self._bring([host])  # the lost member may have removed its host's files
            except UserError as error:
                failed = failed or error
                continue
            self._where[rank] = host
            self._processes.restart(rank)
            return
        raise failed or UserError("no host is left for the process")

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Implement Processes; remove the files on the hosts."""
        self._processes.stop(grace_s)
        self._remove()

    def _bring(self, hosts: Sequence[str]) -> None:
        brought = self._over.bring(self._task, hosts)
        self._brought.append(brought)
        self._at.update(dict.fromkeys(hosts, brought.name))

    def _remove(self) -> None:
        brought, self._brought = self._brought, []
        for one in brought:
            one.remove()

    def _spawn(self, rank: int) -> "subprocess.Popen[bytes]":
        host = self._where[rank]
        ranks = [r for r, name in enumerate(self._where) if name == host]
        python, dash_m, *module = self._task.argv
        variables = {name: os.environ[name] for name in EXPORTED if name in os.environ}
        variables |= {
            "FDT_RANK": str(rank),
            "FDT_LOCAL_RANK": str(ranks.index(rank)),
            "FDT_LOCAL_SIZE": str(len(ranks)),
        }
        assignments = [f"{name}={value}" for name, value in variables.items()]
        argv = ["env", *assignments, python, dash_m, "fdt.service.host_bootstrap", self._at[host], self._task.role]
        log = self._run_dir / f"{self._task.role}-{rank}.log"
        return spawn(argv_on(host, [*argv, *module]), launch_environment(), log)
