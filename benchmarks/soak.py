"""A long run that loses a worker every 20 s: does its memory stay constant, and is its model as good?

Every few seconds it measures the memory of the client, the server and worker 0, and the largest one of the other
workers (each lives until SIGKILL). Only anonymous memory counts: whose alone a page of a library or of the store is
changes with the ends of other processes. It also measures file descriptors, threads, and the bytes and files of the
run's store. Under HFDT all ranks restart from the last commit, so the client is the process that lives long.
A slope is the least-squares line through ten means of the time after the warm-up, with its standard error. A worker
that lives for 20 s is measured by the largest value of each tenth instead: its mean says how long a start takes, which
the machine's load decides.
Then the same script runs undisturbed for a while: test accuracies after the same number of epochs are compared.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import QUIET, SCRIPTS, console
from rich.table import Table

ENGINES = {"nfdt": ["-np", "3"], "hfdt": ["-np", "2", "--commit-every", "50steps"]}
RESTART = {"nfdt": ("other workers",), "hfdt": ("worker 0", "other workers")}  # the members that a kill ends
WARM_UP = 0.25  # of the run
BLOCKS = 10
FLAT_MB_A_MIN = 0.1  # the largest slope that counts as constant
WITHIN = 0.01
LAST = "\nlast "  # what the script says when `fit` has returned
MIB = 1 << 20
SHARED_MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--reference-minutes", type=float, help="of the undisturbed run  [default: a sixth]")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--engine", choices=ENGINES, default="nfdt")
    parser.add_argument("--ps", type=int, default=1, help="server shards of NFDT")
    parser.add_argument("--out", type=Path, help="also write what was measured there, as JSON")
    given = parser.parse_args()
    command = [given.engine, "run", *ENGINES[given.engine], "--restarts", "100000"]
    command += ["--ps", str(given.ps)] if given.engine == "nfdt" else []
    disturbed, samples = soak(command, given.minutes, given.every)
    reference, _ = soak(command, given.reference_minutes or given.minutes / 6, math.inf)
    if given.out:
        given.out.write_text(json.dumps({"samples": samples, "disturbed": disturbed, "reference": reference}))
    sys.exit(not report(samples, disturbed, reference, RESTART[given.engine]))


def soak(command: list[str], minutes: float, every_s: float) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Run the workers once; return the outcome and the measurements during training."""
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        log = Path(temporary) / "said"
        environment = {**os.environ, **QUIET, "TMPDIR": temporary}
        before = set(SHARED_MEMORY.iterdir())  # no other run may start beside this one
        with open(log, "w") as out:
            running = subprocess.Popen(
                [sys.executable, "-m", *command, str(SCRIPTS / "soak_fit.py"), str(minutes)],
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        try:
            samples, kills = watch(running, log, every_s)
        finally:
            for process in [*below(running.pid), running]:
                process.kill()
            running.wait()
        said = log.read_text()
        lines = said.splitlines()
        accuracies = [float(line.split()[3]) for line in lines if line.startswith("epoch ")]
        result = {
            "code": running.returncode,
            "kills": kills,
            "minutes": minutes,
            "left": len(os.listdir(temporary)) - 1 + len(set(SHARED_MEMORY.iterdir()) - before),
        }
        result |= {"accuracies": accuracies} if LAST in said else {"said": said[-2000:]}
        result["replaced"] = sum("replacement " in line or " restart from " in line for line in lines)
        return result, samples


def watch(running: "subprocess.Popen[bytes]", log: Path, every_s: float) -> tuple[list[dict[str, float]], int]:
    """Measure and kill until the run ends by itself."""
    while "fit begins" not in log.read_text() and running.poll() is None:
        time.sleep(0.2)
    begin, samples, kills, chance = time.monotonic(), [], 0, random.Random(0)
    due = begin + every_s
    while running.poll() is None:
        if LAST in log.read_text():  # what it frees at its end is no slope
            running.wait()
            break
        try:
            samples.append({"minute": (time.monotonic() - begin) / 60, **measured(running.pid)})
            victims = [process for rank, process in workers(below(running.pid)).items() if rank]
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, IndexError):
            continue  # one that ends while it is looked at, or is not there
        if time.monotonic() >= due and victims:
            chance.choice(victims).kill()
            kills, due = kills + 1, due + every_s
        time.sleep(min(4.0, max(0.1, due - time.monotonic())))
    return samples, kills


def measured(client: int) -> dict[str, float]:
    """Return the measurements, in MiB except for counts."""
    processes = below(client)
    ranks = workers(processes)
    servers = [process for process in processes if is_a(process, "nfdt.server")]
    found = {"client": [psutil.Process(client)], "server": servers, "worker 0": [ranks[0]] if 0 in ranks else []}
    found["other workers"] = [process for rank, process in ranks.items() if rank]
    said: dict[str, float] = {}
    for name, those in found.items():
        if those:
            said[f"{name}, MB"] = max(map(anonymous_mb, those))
        if those and name != "other workers":
            said[f"{name}, open files"] = max(process.num_fds() for process in those)
            said[f"{name}, threads"] = max(process.num_threads() for process in those)
    files = [file.stat() for file in store_of((servers or found["worker 0"])[0]).iterdir()]
    return {**said, "store, MB": sum(file.st_blocks * 512 for file in files) / MIB, "store, files": len(files)}


def anonymous_mb(process: psutil.Process) -> float:
    """Return the MiB that the process has allocated, without mapped files and shared memory.

    Raises psutil.NoSuchProcess when it has ended.
    """
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as rollup:
            return int(next(line for line in rollup if line.startswith("Anonymous:")).split()[1]) / 1024
    except (OSError, StopIteration):  # a zombie has no lines
        raise psutil.NoSuchProcess(process.pid) from None


def workers(processes: Sequence[psutil.Process]) -> dict[int, psutil.Process]:
    """Return the workers by rank."""
    names = {"nfdt.worker.process": "FDT_RANK", "hfdt.worker.process": "OMPI_COMM_WORLD_RANK"}
    found = [(process, name) for process in processes for module, name in names.items() if is_a(process, module)]
    return {int(process.environ()[name]): process for process, name in found}


def below(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def is_a(process: psutil.Process, module: str) -> bool:
    return bool(process.cmdline()[1:3] == ["-m", module])


def store_of(member: psutil.Process) -> Path:
    """Return the engine's store in shared memory."""
    return Path(member.environ()["FDT_ENGINE"].split(",")[0].removeprefix("unix:")).parent.parent


def slope(minutes: Sequence[float], values: Sequence[float], largest: bool = False) -> tuple[float, float]:
    """Return the slope per minute and its standard error.

    Neighbours in time are correlated, so the means of blocks, or their largest values, count as one value each.
    """
    blocks = [b for b in np.array_split(np.arange(len(values)), BLOCKS) if len(b)]
    if len(blocks) < 4:
        return math.nan, math.nan
    x = [np.mean(np.asarray(minutes)[block]) for block in blocks]
    y = [(np.max if largest else np.mean)(np.asarray(values)[block]) for block in blocks]
    (rate, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(rate), float(math.sqrt(covariance[0, 0]))


def is_flat(rate: float) -> bool:
    """Return whether a slope is small; NaN, of too few values, shows nothing."""
    return rate <= FLAT_MB_A_MIN


def report(
    samples: list[dict[str, float]],
    disturbed: dict[str, Any],
    reference: dict[str, Any],
    restarted: tuple[str, ...] = (),
) -> bool:
    """Print the figures; return whether all of them are as required.

    Args:
        restarted: The members that live until the next kill.
    """
    end = samples[-1]["minute"] if samples else 0.0
    table = Table("after the warm-up", "first", "last", "largest", "slope a minute", "+-", "flat")
    good = bool(samples)
    for name in sorted({name for sample in samples for name in sample} - {"minute"}):
        kept = [s for s in samples if name in s and s["minute"] >= WARM_UP * end]
        values = [s[name] for s in kept]
        if not values:  # measured in the warm-up alone
            good = False
            table.add_row(name, "-", "-", "-", "-", "-", "NO")
            continue
        rate, spread = slope([s["minute"] for s in kept], values, name.startswith(restarted))
        flat = is_flat(rate)
        good = good and flat
        shown = (f"{value:.1f}" for value in (values[0], values[-1], max(values)))
        table.add_row(name, *shown, f"{rate:+.3f}", f"{spread:.3f}", "yes" if flat else "NO")
    console.print(table)
    for name, result in (("disturbed", disturbed), ("undisturbed", reference)):
        console.print(f"{name}: {result}")
    if "accuracies" not in disturbed or "accuracies" not in reference or disturbed["code"] or disturbed["left"]:
        return False
    if not disturbed["kills"]:
        console.print("no worker was killed: the run was too short to say anything")
        return False
    count = min(len(disturbed["accuracies"]), len(reference["accuracies"]))
    after = [float(np.mean(result["accuracies"][:count][-3:])) for result in (disturbed, reference)]
    console.print(
        f"test accuracy, mean of epochs {max(1, count - 2)} to {count}: {after[0]:.4f}, undisturbed {after[1]:.4f}"
    )
    return good and after[1] - after[0] <= WITHIN


if __name__ == "__main__":
    main()
