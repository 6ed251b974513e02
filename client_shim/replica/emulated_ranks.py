"""Ranks of a replicated script on emulated hosts (fdt/launch/emulated.py), for `--emulate`.

Rank 0 is the command's process. It stays in this machine's network, as the script may use it; only the process group's
sockets are on rank 0's emulated host. The other ranks do what ranks on other hosts do (remote_ranks.py).
"""

import contextlib
import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from client_shim.replica.rank import ReplicatedScript
from client_shim.replica.remote_ranks import ROLE, SCRATCH, group_of
from fdt.environment import thread_variables
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, host_on
from fdt.launch.placement import run_identity
from fdt.network import Cluster
from fdt.network.topology import topology_of
from fdt.process_group.root import RootGroup
from fdt.service.host_bootstrap import DIRECTORY_VARIABLE

_CLONE_NEWNET = 0x40000000  # linux/sched.h


@contextlib.contextmanager
def host(script: ReplicatedScript, run_dir: Path, cluster: Cluster) -> Iterator[RootGroup]:
    """Start the other ranks, one on each further worker's host of `cluster`, and yield rank 0's process group.

    The counterpart of client_shim.replica.run.host.

    Raises:
        UsageError: The cluster cannot be emulated.
        UserError: Hosts cannot be emulated here: a privilege or a tool is missing.
    """
    size, identity, mine = len(cluster.workers), run_identity(), host_on(cluster, 0)
    os.environ.update(thread_variables(size))  # the hosts share this machine's cores

    def log_of(rank: int | None) -> Path:
        return run_dir / f"{ROLE}-{(rank or 0) + 1}.log"

    with (
        contextlib.closing(EmulatedNetwork(topology_of(cluster))) as network,
        _launcher(cluster, network, run_dir) as launcher,
        group_of(script, size, identity, mine.address, launcher, log_of, entered(network, mine)) as made,
        script.bound(size),
    ):
        yield made


@contextlib.contextmanager
def _launcher(cluster: Cluster, network: EmulatedNetwork, run_dir: Path) -> Iterator[EmulatedLauncher]:
    """Yield the launcher of ranks 1, 2, ... on their hosts; a directory for their files is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="fdt-", dir=SCRATCH, ignore_cleanup_errors=True) as directory:
        env = {DIRECTORY_VARIABLE: directory}
        yield EmulatedLauncher(run_dir, network, lambda _, rank: host_on(cluster, rank), lambda _: env, first=1)


@contextlib.contextmanager
def entered(network: EmulatedNetwork, host: EmulatedHost) -> Iterator[None]:
    """Within the context, this thread is on a new host of the network. The sockets that it makes remain there."""
    libc, outside = ctypes.CDLL(None, use_errno=True), os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    def call(function: str, *arguments: int) -> None:
        if getattr(libc, function)(*arguments, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")

    try:
        call("unshare")
        try:
            network.attach(threading.get_native_id(), host)
            yield
        finally:
            call("setns", outside)
    finally:
        os.close(outside)
