"""Runs with one process killed at a random moment of training: does each end right, or with the promised error in time?

The script counts how often each row was trained on (scripts/counts.py), so "right" is exact. After each run: no process
of it, no store in /dev/shm, no socket. Nothing is killed but what this script has started.
"""

import argparse
import os
import random
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness import QUIET, SCRIPTS, console
from rich.table import Table

RIGHT_S, ERROR_S, GONE_S = 180.0, 10.0, 30.0  # from the kill to: the end, the error, nothing left


@dataclass(frozen=True)
class Case:
    """`flags` of the command; `victim`: the module of the process to kill, "client" or "mpirun"."""

    engine: str
    flags: tuple[str, ...]
    victim: str
    recovers: bool = False


CASES = (
    Case("nfdt", ("--restarts", "1"), "nfdt.worker", recovers=True),
    Case("nfdt", ("--min-np", "1"), "nfdt.worker", recovers=True),
    Case("nfdt", ("--ps", "2", "--restarts", "1", "--overlap", "on"), "nfdt.worker", recovers=True),
    Case("nfdt", ("--checkpoint-every", "1s"), "nfdt.server", recovers=True),
    Case("nfdt", ("--ps", "2", "--checkpoint-every", "1s"), "nfdt.server", recovers=True),
    Case("nfdt", (), "nfdt.worker"),
    Case("nfdt", ("--ps", "2"), "nfdt.server"),
    Case("nfdt", (), "client"),
    Case("hfdt", (), "hfdt.worker"),
    Case("hfdt", (), "mpirun"),
    Case("hfdt", (), "client"),
)


@dataclass
class Result:
    """`seconds` from the kill to the command's end, or for a killed client to the end of the last process."""

    case: Case
    said: str
    seconds: float
    left: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each case")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", default="nfdt,hfdt")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    cases = [case for case in CASES if case.engine in given.engines.split(",")]
    results = [disturbed(case, given.epochs, chance) for _ in range(given.runs) for case in cases]
    report(cases, results)
    sys.exit(any(not good(result) for result in results))


def disturbed(case: Case, epochs: int, chance: random.Random) -> Result:
    """One run of `case`, its victim killed within its first seconds of training."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        log = Path(temporary) / "said"
        argv = [sys.executable, "-m", f"{case.engine}.cli", "run", "-np", "2", *case.flags]
        with open(log, "w") as out:
            running = subprocess.Popen(
                [*argv, str(SCRIPTS / "counts.py"), str(epochs)],
                stdout=out,
                stderr=out,
                env={**os.environ, **QUIET, "TMPDIR": temporary},
                start_new_session=True,
            )
        try:
            return _kill_and_watch(case, running, log, Path(temporary), chance)
        finally:
            for process in _alive(_below(running.pid)):
                process.kill()
            running.kill()
            running.wait()


def _kill_and_watch(
    case: Case, running: subprocess.Popen[bytes], log: Path, temporary: Path, chance: random.Random
) -> Result:
    while "fit begins" not in log.read_text() and running.poll() is None:
        time.sleep(0.1)
    time.sleep(chance.uniform(0.0, 8.0))
    processes = [psutil.Process(running.pid), *_below(running.pid)] if running.poll() is None else []
    stores = _stores(processes)
    victims = [process for process in processes if _is(process, case.victim, running.pid)]
    if not victims:
        return Result(case, "nobody to kill", 0.0)
    chance.choice(victims).kill()
    start = time.monotonic()
    try:
        running.wait(RIGHT_S)
    except subprocess.TimeoutExpired:
        return Result(case, "did not end", time.monotonic() - start)
    ended = time.monotonic() - start
    while _alive(processes) and time.monotonic() - start < ended + GONE_S:
        time.sleep(0.1)
    left = [f"process {' '.join(process.cmdline()[:3])}" for process in _alive(processes)]
    left += [f"store {store}" for store in stores if store.exists()]
    left += [f"socket {path}" for path in temporary.rglob("*") if path.is_symlink() or _is_socket(path)]
    seconds = time.monotonic() - start if case.victim == "client" else ended
    return Result(case, _said(case, running.returncode, log.read_text()), seconds, left)


def good(result: Result) -> bool:
    case = result.case
    if result.left:
        return False
    if case.victim == "client":
        return result.said in ("killed", "right") and result.seconds < GONE_S
    return result.said == "right" or (not case.recovers and result.said == "error" and result.seconds < ERROR_S)


def report(cases: Sequence[Case], results: Sequence[Result]) -> None:
    table = Table("killed", "command", "runs", "right", "error", "good", "slowest s", "left behind")
    for case in cases:
        mine = [result for result in results if result.case is case]
        counts = [sum(result.said == said for result in mine) for said in ("right", "error")]
        left = sorted({what.split()[0] for result in mine for what in result.left})
        table.add_row(
            case.victim,
            " ".join([case.engine, *case.flags]),
            str(len(mine)),
            *map(str, counts),
            str(sum(map(good, mine))),
            f"{max(result.seconds for result in mine):.1f}",
            ", ".join(left) or "nothing",
        )
    console.print(table)
    for result in results:
        if not good(result):
            console.print(f"NOT GOOD: {result}")
    console.print(f"{sum(map(good, results))} of {len(results)} as promised")


def _said(case: Case, code: int, text: str) -> str:
    if case.victim == "client" and code < 0:
        return "killed"
    if code == 0 and "counted right" in text:
        return "right"
    last = (text.strip().splitlines() or [""])[-1]
    promised = code == 1 and "was lost. Received:" in last and "Traceback" not in text
    return "error" if promised else f"exit code {code}: {text[-600:]}"


def _is(process: psutil.Process, victim: str, client: int) -> bool:
    if victim == "client":
        return bool(process.pid == client)
    words = process.cmdline()
    name = Path((words or [""])[0]).name
    return words[1:3] == ["-m", victim] or (victim == "mpirun" and name in ("mpirun", "prterun"))  # Open MPI 4; 5


def _below(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Without zombies that only wait for a parent to look."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def _stores(processes: Sequence[psutil.Process]) -> list[Path]:
    """The engine's store in shared memory, as its members' environment names it."""
    addresses = {process.environ().get("FDT_ENGINE", "") for process in processes if process.is_running()}
    return [Path(address.removeprefix("unix:")).parent for address in addresses if address.startswith("unix:")]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


if __name__ == "__main__":
    main()
