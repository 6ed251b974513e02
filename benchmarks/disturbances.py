"""The faults of benchmarks/chaos.py: what a run needs before it starts, and what then happens to one of its processes.

Links are those of emulated hosts; file systems are small ones of a mount namespace. `python benchmarks/disturbances.py
RUN_DIR HOW` damages the newest checkpoint of a run, and prints what the resumed run must then print.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from aftermath import MARK, Aftermath
from harness import SCRIPTS

from tests.ssh_hosts import SshHosts

LOST = ("was lost: ", "lost its connection to another worker", "does not answer; check the network")
NO_TRANSPORT = (  # mpirun loses its own message in a quarter of such runs
    "A requested component was not found, or was unable to be opened: Host: ",
    "An error occurred in MPI_Init_thread with OMPI_MCA_pml=nosuchpml",
)
HEALS_S, STALLS_S = 5.0, 20.0
HOUR_S = 3600
CLUSTER = "step: 5 ms\nlink: {bandwidth: 100 Mbit/s}\nnodes: [{name: node, count: 2}]\n"
MOUNTED = 'set -e; mount --make-rprivate /; mount -t tmpfs -o size="$1" tmpfs "$2"; shift 2; exec "$@"'
CHECKPOINTS, TO_FALL_BACK = "fit-*-epoch-*.ckpt", 2  # the newest, and the one before it
NOTHING_SAVED = 9  # exit code: the run had ended, so there was no checkpoint to damage
EXPECTED = "expected: "  # begins a line; the run must print the rest of it, too
RESUMED = """
"$@"
"$PYTHON" "$DAMAGE" "$RUN" "$HOW" && exec "$PYTHON" -m "$ENGINE" run --resume "$RUN"
"""


@dataclass(frozen=True)
class Prepared:
    """`before`: words before the command; `options`: of the command; `env`: of its environment."""

    before: Sequence[str] = ()
    options: Sequence[str] = ("-np", "2")
    env: Mapping[str, str] = field(default_factory=dict)


def nothing(traces: Aftermath, engine: str) -> Prepared:
    return Prepared()


def without_transport(traces: Aftermath, engine: str) -> Prepared:
    return Prepared(env={"OMPI_MCA_pml": "nosuchpml"})


def hosts(traces: Aftermath, engine: str) -> Prepared:
    cluster = _folder(traces) / "cluster.yaml"
    cluster.write_text(CLUSTER)
    return Prepared(options=("--emulate", str(cluster)))


def ssh_hosts(traces: Aftermath, engine: str) -> Prepared:
    """Start three hosts for -H; the command is on host1."""
    traces.hosts = SshHosts(_folder(traces, "hosts"), f"{MARK}={traces.env[MARK]}")
    return Prepared([*traces.hosts.command(), f"TMPDIR={traces.temporary}"], ())


def small_disk(traces: Aftermath, engine: str) -> Prepared:
    run = _folder(traces, "run")
    return Prepared(_mounted("1m,mode=700", run), ("-np", "2", "--run-dir", str(run)))


def small_memory(traces: Aftermath, engine: str) -> Prepared:
    return Prepared(_mounted("64m", Path("/dev/shm")))


def resumed(how: str, traces: Aftermath, engine: str) -> Prepared:
    run = _folder(traces, "run")
    env = {"RUN": str(run), "PYTHON": sys.executable, "DAMAGE": __file__, "HOW": how, "ENGINE": engine}
    return Prepared(["sh", "-c", RESUMED, "sh"], ("-np", "2", "--run-dir", str(run)), env)


def jumping_clock(traces: Aftermath, engine: str) -> Prepared:
    """Compile the library of a wall clock that all processes of the run load."""
    library = _folder(traces) / "jumping_clock.so"
    compile_it = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SCRIPTS / "jumping_clock.c"), "-ldl"]
    subprocess.run(compile_it, check=True)
    return Prepared(env={"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(_jump(traces))})


def await_mpi_init(victim: psutil.Process, traces: Aftermath) -> float:
    """Wait until MPI_Init, which lacks a transport, has failed in a rank; return the seconds until then."""
    start = time.monotonic()
    while victim.is_running() and not any("MPI_Init" in log.read_text() for log in traces.temporary.glob("*/*.log")):
        time.sleep(0.05)
    return time.monotonic() - start


def kill(victim: psutil.Process, traces: Aftermath) -> None:
    victim.kill()


def kill_when_saved(victim: psutil.Process, traces: Aftermath) -> float:
    """Kill the command once it has a checkpoint and the one before it; return the seconds until then."""
    start = time.monotonic()
    while victim.is_running() and len(list(_folder(traces, "run").glob(CHECKPOINTS))) < TO_FALL_BACK:
        time.sleep(0.02)
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()
    return time.monotonic() - start


def cut(victim: psutil.Process, traces: Aftermath) -> None:
    _link(victim, "down")


def cut_and_heal(victim: psutil.Process, traces: Aftermath) -> None:
    _link(victim, "down")
    time.sleep(HEALS_S)
    _link(victim, "up")


def stall(victim: psutil.Process, traces: Aftermath) -> None:
    """Stop all processes of the victim's host for a while."""
    neighbors = [p for p in traces.processes() if _network_of(p) == _network_of(victim)]
    for each in neighbors:
        each.suspend()
    time.sleep(STALLS_S)
    for each in neighbors:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(each.pid, signal.SIGCONT)


def fill_disk(victim: psutil.Process, traces: Aftermath) -> None:
    _fill(victim, _folder(traces, "run"))


def fill_memory(victim: psutil.Process, traces: Aftermath) -> None:
    _fill(victim, Path("/dev/shm"))


def ahead(victim: psutil.Process, traces: Aftermath) -> None:
    _set_clock(victim, traces, HOUR_S)


def back(victim: psutil.Process, traces: Aftermath) -> None:
    _set_clock(victim, traces, -HOUR_S)


@dataclass(frozen=True)
class Disturbance:
    """`strike` may return seconds that passed before the fault. `promised`: words of the error, if that is promised."""

    prepare: Callable[[Aftermath, str], Prepared]
    strike: Callable[[psutil.Process, Aftermath], float | None]
    promised: Sequence[str] = LOST


DISTURBANCES = {
    "kill": Disturbance(nothing, kill),
    "MPI_Init fails": Disturbance(without_transport, await_mpi_init, NO_TRANSPORT),
    "link cut": Disturbance(hosts, cut),
    "host of -H cut off": Disturbance(ssh_hosts, cut),
    "link cut for 5 s": Disturbance(hosts, cut_and_heal),
    "host stopped for 20 s": Disturbance(hosts, stall),
    "--run-dir full": Disturbance(small_disk, fill_disk),
    "/dev/shm full": Disturbance(small_memory, fill_memory),
    "checkpoint damaged": Disturbance(partial(resumed, "flip"), kill_when_saved),
    "checkpoint cut short": Disturbance(partial(resumed, "cut"), kill_when_saved),
    "clock jumps by +1 h": Disturbance(jumping_clock, ahead),
    "clock jumps by -1 h": Disturbance(jumping_clock, back),
}


def _folder(traces: Aftermath, *names: str) -> Path:
    """Return a folder whose files may remain (aftermath.py)."""
    folder = traces.temporary.joinpath("state", *names)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _jump(traces: Aftermath) -> Path:
    return _folder(traces) / "jump"


def _set_clock(victim: psutil.Process, traces: Aftermath, seconds: int) -> None:
    """Let the clock of all processes of the run jump at once: the file appears with its text."""
    if "jumping_clock.so" not in Path(f"/proc/{victim.pid}/maps").read_text():
        raise RuntimeError(f"process {victim.pid} has not loaded the clock that jumps")
    whole = _jump(traces).with_suffix(".new")
    whole.write_text(str(seconds))
    whole.rename(_jump(traces))


def _mounted(size: str, directory: Path) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", size, str(directory)]


def _network_of(process: psutil.Process) -> str:
    return os.readlink(f"/proc/{process.pid}/ns/net")


def _link(victim: psutil.Process, state: str) -> None:
    words = ["nsenter", f"--net=/proc/{victim.pid}/ns/net", "ip", "link", "set", "eth0", state]
    subprocess.run(words, check=True)


def _fill(victim: psutil.Process, directory: Path) -> None:
    """Fill the file system that the victim sees at `directory`."""
    with contextlib.suppress(OSError), open(f"/proc/{victim.pid}/root{directory}/full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def damage(run: Path, how: str) -> int:
    """Flip a bit in the midst of the newest checkpoint, or cut it in half; return the exit code."""
    saved = sorted(run.glob(CHECKPOINTS))
    if len(saved) < TO_FALL_BACK:
        return NOTHING_SAVED
    before, newest = saved[-TO_FALL_BACK:]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data if how == "flip" else data[: len(data) // 2])
    epoch = int(before.stem.rpartition("-")[2])
    print(
        f"{EXPECTED}{newest.name} is damaged: \n{EXPECTED}fit 1 continues from the end of epoch {epoch} of ", flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(damage(Path(sys.argv[1]), sys.argv[2]))
