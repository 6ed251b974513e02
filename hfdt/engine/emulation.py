"""Engine of `hfdt run --emulate`: each rank on an emulated host, as a cluster file describes it.

Ranks are plain processes in namespaces (fdt/launch/emulated.py). They meet at Horovod's rendezvous server, which has a
host of its own at the place of the cluster's server, and add gradients by Gloo, over TCP. Links are shaped; steps are
not paced, so a file's `step` and `speed` are not used.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fdt.launch import GRACE_S, Exit, Task
from fdt.launch.emulated import (
    EmulatedHost,
    EmulatedLauncher,
    EmulatedNetwork,
    EmulatedProcesses,
    address_of,
    host_at_server,
    host_on,
)
from fdt.network import Cluster
from fdt.network.reading import read_emulated
from fdt.network.topology import topology_of
from hfdt.engine.engine import HfdtEngine
from hfdt.engine.rendezvous import gloo_variables

PORT = 7078
GLOO_S = 22  # a host that stands still for 20 s is not lost; one that is lost ends the run within 30


class EmulatedHfdtEngine(HfdtEngine):
    """HFDT with one rank per node of the cluster in `file`.

    Args:
        file: The cluster file.
        run_dir: The directory of logs.
        bind_to: "cores" gives each rank its part of the cores, "none" leaves it to the scheduler.

    Raises:
        UsageError: The cluster cannot be emulated.
        UserError: Hosts cannot be emulated here: a privilege or a tool is missing.
    """

    def __init__(self, file: Path, run_dir: Path, *, bind_to: str = "cores") -> None:
        cluster = read_emulated(file)
        self._network = EmulatedNetwork(topology_of(cluster))
        launcher = EmulatedRanks(run_dir, self._network, cluster)
        super().__init__(len(cluster.workers), run_dir, launcher=launcher, comm="horovod", bind_to=bind_to)

    def stop(self) -> None:
        """End all processes and remove the emulated network."""
        try:
            super().stop()
        finally:
            self._network.close()


class EmulatedRanks:
    """A launcher of Horovod's ranks on the nodes of `cluster`, and of their rendezvous server."""

    def __init__(self, run_dir: Path, network: EmulatedNetwork, cluster: Cluster) -> None:
        self._cluster = cluster
        self._launcher = EmulatedLauncher(run_dir, network, self._host, self._variables)

    def start(self, task: Task) -> "RanksAndRendezvous":
        hosts = ",".join(f"{node.name}:1" for node in self._cluster.workers)
        arguments = hosts, str(task.count), address_of(0), str(PORT), str(os.getpid())
        argv = (sys.executable, "-m", "hfdt.engine.rendezvous", *arguments)
        rendezvous = self._launcher.start(Task("rendezvous", argv, 1, task.env))
        try:
            return RanksAndRendezvous(self._launcher.start(task), rendezvous)
        except BaseException:
            rendezvous.stop(0.0)
            raise

    def _host(self, role: str, rank: int) -> EmulatedHost:
        return host_at_server(role) if role == "rendezvous" else host_on(self._cluster, rank)

    def _variables(self, rank: int) -> Mapping[str, str]:
        size, network = len(self._cluster.workers), (address_of(0), PORT, "eth0")
        return {
            "FDT_LOCAL_RANK": str(rank),  # the hosts share this machine's cores
            "FDT_LOCAL_SIZE": str(size),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_S),
            **gloo_variables(rank, size, 1, self._cluster.workers[rank].name, network),
        }


class RanksAndRendezvous:
    """The launched ranks with their rendezvous server."""

    def __init__(self, ranks: EmulatedProcesses, rendezvous: EmulatedProcesses) -> None:
        self._ranks, self._rendezvous = ranks, rendezvous

    @property
    def pids(self) -> list[int]:
        """The process numbers, by rank."""
        return self._ranks.pids

    def exits(self) -> list[Exit]:
        """Implement Processes: the ranks that have ended, or the rendezvous server."""
        return [*self._ranks.exits(), *self._rendezvous.exits()]

    def stop(self, grace_s: float = GRACE_S) -> None:
        self._ranks.stop(grace_s)
        self._rendezvous.stop(grace_s)
