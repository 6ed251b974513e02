"""The harness of comparisons: it runs two sides alternately, and prints medians, spread and one ratio."""

import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOAD = os.getloadavg()[0]  # of others: nothing of ours runs yet
CORES = len(os.sched_getaffinity(0))
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "PYTHONDONTWRITEBYTECODE": "",  # unset: our modules are compiled once, as everybody else's are
}
sys.path.insert(0, str(ROOT))  # so that it runs from a checkout that is not installed
console = Console(width=118, highlight=False, markup=False)


@dataclass(frozen=True)
class Run:
    """One command, from start to end. `said` is the script's own report (scripts/workload.py).

    `cpu_s` is of all its processes; other load on the machine changes it less than `wall_s`.
    """

    launched: float
    wall_s: float
    cpu_s: float
    said: Mapping[str, Any]

    @property
    def samples_per_s(self) -> float:
        """Steady state: from the end of the first epoch to the end of the last. Raises ValueError with one epoch."""
        ends = self.said["epoch_ends"]
        if len(ends) < 2:
            raise ValueError(f"samples/s needs two epochs or more. Received: {len(ends)}")
        return float(self.said["rows"] * (len(ends) - 1) / (ends[-1] - ends[0]))

    @property
    def fastest(self) -> float:
        """samples/s of the fastest epoch but the first: the least disturbed one."""
        ends = self.said["epoch_ends"]
        return float(self.said["rows"] / min(b - a for a, b in itertools.pairwise(ends)))

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of the phases, in order. Their sum is `wall_s`."""
        said, ends = self.said, self.said["epoch_ends"]
        return {
            "until the script's first line": said["started"] - self.launched,
            "script's imports": said["imported"] - said["started"],
            "script before fit": said["fit"] - said["imported"],
            "fit's start and first epoch": ends[0] - said["fit"],
            "other epochs": ends[-1] - ends[0],
            "end of fit": said["fitted"] - ends[-1],
            "until the command ended": self.launched + self.wall_s - said["fitted"],
        }


class Failed(Exception):
    """Raised where a side of a comparison failed."""


def engine(name: str, workers: int, *options: str, script: str = "keras_fit.py") -> list[str]:
    """Return the command line of `hfdt run` or `nfdt run` on a script."""
    return [sys.executable, "-m", name, "run", *options, str(SCRIPTS / script), "-np", str(workers)]


def python(script: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / script)]


def threads(processes: int) -> dict[str, str]:
    """Return the variables that give peers the threads of HFDT's and NFDT's processes (fdt/environment.py)."""
    share = str(max(1, CORES // processes))
    return {"OMP_NUM_THREADS": share, "TF_NUM_INTRAOP_THREADS": share}


def run(argv: Sequence[str], env: Mapping[str, str] = {}, timeout_s: float = 600) -> Run:
    """Run `argv` to its end. Raises Failed where it fails or prints no report."""
    launched, start, cpu_s = time.time(), time.perf_counter(), children_cpu_s()
    popen = subprocess.Popen(
        list(argv),
        env={**os.environ, **QUIET, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, _ = popen.communicate(timeout=timeout_s)
    except BaseException:
        end(popen)
        raise
    wall_s = time.perf_counter() - start
    if popen.returncode:
        raise Failed(f"exit code {popen.returncode}: {' '.join(argv)}\n{out[-3000:]}")
    return Run(launched, wall_s, children_cpu_s() - cpu_s, report_in(out, argv))


def children_cpu_s() -> float:
    """Return the CPU seconds of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report_in(out: str, argv: Sequence[str]) -> Mapping[str, Any]:
    for line in out.splitlines():
        _, mark, report = line.partition("bench ")
        if mark and report.startswith("{"):
            said: Mapping[str, Any] = json.loads(report)
            return said
    raise Failed(f"the script must print its `bench` line. Received: {' '.join(argv)}\n{out[-3000:]}")


def end(popen: "subprocess.Popen[Any]") -> None:
    """End a process and its process group."""
    popen.terminate()
    try:
        popen.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(popen.pid, 9)
        popen.wait()


def outcome(popen: "subprocess.Popen[str]", timeout_s: float) -> tuple[str, str]:
    """Return what a process has written to both pipes when it has ended; it is killed after `timeout_s`."""
    try:
        return popen.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.communicate()


def kept(out: Path | None) -> list[dict[str, Any]]:
    """Return the entries of a file of JSON lines, [] where there is none."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.exists() else []


def keep(out: Path | None, entry: Mapping[str, Any]) -> None:
    """Add an entry to a file of JSON lines, where there is to be one."""
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def in_turns(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Any]]:
    """Run all sides once, then all again, and so on, so that other load on the machine affects all alike."""
    results: dict[str, list[Any]] = {name: [] for name in sides}
    for repeat in range(repeats):
        order = list(sides) if repeat % 2 == 0 else list(reversed(list(sides)))
        for name in order:
            console.print(f"  {repeat + 1}/{repeats} {name} ...", style="dim")
            results[name].append(sides[name]())
    return results


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Return "median (smallest .. largest)"."""
    low, high = min(values), max(values)
    return f"{median(values):{form}} ({low:{form}} .. {high:{form}})" if len(values) > 1 else f"{low:{form}}"


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console.print(f"\n{title}")
    drawn = Table()
    for i, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return one ratio for each turn."""
    return [a / b for a, b in zip(over, under, strict=True)]


def verdict(what: str, ratios: Sequence[float], *, at_least: float | None = None, at_most: float | None = None) -> None:
    """Print the ratio line. `ratios`: one for each turn; their median counts.

    It is added to the file that the variable BENCH_CLAIMS names: docs/figures/claims.py draws such a file.
    """

    def meets(ratio: float) -> bool:
        return (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)

    met = meets(median(ratios))
    unsettled = "" if all(meets(ratio) == met for ratio in ratios) else ", but not in every turn"
    bounds = (("at least", at_least), ("at most", at_most))
    targets = [f"{word} {bound:.2f}" for word, bound in bounds if bound is not None]
    outcome = "".join(f"; target {target}: {'met' if met else 'MISSED'}{unsettled}" for target in targets)
    console.print(f"ratio, {what}: {spread(ratios, '.3f')}{outcome}")
    if claims := os.environ.get("BENCH_CLAIMS"):
        said = {"at": machine(), "script": Path(sys.argv[0]).name, "claim": what, "ratios": list(ratios)}
        keep(Path(claims), {**said, "at_least": at_least, "at_most": at_most})


def conclude(main: Callable[[], int]) -> NoReturn:
    """Exit with the code that `main` returns; a failed side is one line without a traceback.

    SIGTERM and SIGHUP raise, so that `main` ends what it has started.
    """
    from fdt.ending import ended_by_signals  # `sys.path` has the checkout only now

    try:
        with ended_by_signals():
            sys.exit(main())
    except Failed as error:
        sys.exit(f"{error}")


def machine() -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M')}, {CORES} cores, {platform.machine()}, load {LOAD:.1f} before"
