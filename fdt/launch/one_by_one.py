"""A launcher of members on the hosts of a run, each by its own ssh, so that each can be replaced; mpirun's cannot.

It serves members that need no MPI. An ssh ends with its member; a member whose engine is lost ends by itself.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdt.errors import UserError
from fdt.launch import Exit, Task, remote
from fdt.launch.hosts import Host, ranks
from fdt.launch.local import LocalProcesses, spawn
from fdt.launch.mpirun import EXPORTED
from fdt.launch.over_hosts import HostFiles, HostsLauncher


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
        raise failed or UserError("a member must have a host. Received: none")

    def stop(self, grace_s: float = 2.0) -> None:
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
        there = [r for r, name in enumerate(self._where) if name == host]
        python, dash_m, module = self._task.argv
        variables = {name: os.environ[name] for name in EXPORTED if name in os.environ}
        variables |= {
            "FDT_RANK": str(rank),
            "FDT_LOCAL_RANK": str(there.index(rank)),
            "FDT_LOCAL_SIZE": str(len(there)),
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        argv = ["env", *words, python, dash_m, "fdt.service.host_bootstrap", self._at[host], self._task.role, module]
        log = self._run_dir / f"{self._task.role}-{rank}.log"
        return spawn(remote.argv_on(host, argv), os.environ, log)
