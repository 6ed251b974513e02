"""The stored results of tournament.py, the rows of its tables, and the table that `nfdt advise` reads."""

import json
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import harness
from tournament_tasks import TASKS, nbytes_of
from tournament_training import PER_WORKER, Run, cluster_of

from fdt.errors import UserError
from frontends.advise.ranking import ScriptProbe, rank
from frontends.advise.table import Place, Row, Table

NFDT = (
    "ddc_asgd",
    "ddc_asgd(micro_steps=4)",
    "ssgd",
    "group_sync",
    "server_optimizer(local_steps=8, lr=0.1)",
    "ssp",
    "dana_dc",
    "k_sync",
    "rennala",
    "ringmaster",
    "ringleader",
    "fedbuff",
    "malenia",
    "gap_aware",
    "staleness_aware",
    "asgd",
    "dc_asgd",
    "dc_asgd_a",
    "dc_asgd_k",
)
HFDT = (
    "allreduce",
    f"allreduce{PER_WORKER}",
    "local_sgd",
    f"local_sgd{PER_WORKER}",
    f"dane{PER_WORKER}",
    f"admm{PER_WORKER}",
    "coded(placement='cyclic')",
)
EXACT = (HFDT[0], HFDT[-1])  # one machine's numbers at any number of ranks
NOT_RUN, ALONE = "not run", "python"
HELD, OWN, TASK = "held out", "of the table", "with a task that the table lacks"
CLUSTERS = harness.ROOT / "benchmarks/clusters"
NAMES = ("equal", "unequal", "slow-link", "terminal-edge-cloud", "fluctuating", "equal-2", "equal-4", "equal-16")
RESNET20 = NAMES[:5]  # its clusters: a training takes half a minute of a core
TABLED = ("cnn", "text", "resnet20")  # the tasks of the table of `nfdt advise`
LAST = ("seven-mixed", "twenty-distant", "four-straggler")  # they ran when no rule of the advice changed any more
HELD_OUT = ("six-unequal", "twelve-slow-link", "ten-fluctuating", "five-layered", "two-fast", "three-unequal", *LAST)


def file_of(cluster: str) -> Path:
    """Return the file of a cluster of either list."""
    return CLUSTERS / ("held_out" if cluster in HELD_OUT else "") / f"{cluster}.yaml"


class Stored:
    """The results in a file of JSON lines: runs, and HFDT's trajectories."""

    def __init__(self, path: Path) -> None:
        self.path, self.runs, self.trajectories = path, dict[Run, Any](), dict[tuple[Any, ...], Any]()
        for line in harness.kept(path):
            if "run" in line:
                self.runs[Run(**line["run"])] = line["result"]
            else:
                self.trajectories[tuple(line["trajectory"])] = line["result"]

    def add(self, run: Run, result: Any) -> None:
        """Store a run."""
        self.runs[run] = result
        harness.keep(self.path, {"run": asdict(run), "result": result})

    def add_trajectory(self, key: tuple[Any, ...], result: Any) -> None:
        """Store a trajectory."""
        self.trajectories[key] = result
        harness.keep(self.path, {"trajectory": key, "result": result})


def crossing(curve: Sequence[Sequence[float]], mark: float) -> tuple[float, ...] | None:
    """Return a curve's point where its last number first is `mark`, between two tests; None: never."""
    for before, after in zip([[0.0] * len(curve[0]), *curve], curve, strict=False):
        if after[-1] >= mark:
            part = (mark - before[-1]) / (after[-1] - before[-1])
            return tuple(a + part * (b - a) for a, b in zip(before, after, strict=True))
    return None


def to_mark(result: dict[str, Any], mark: float) -> tuple[float, float, float] | None:
    """Return (batches, seconds, bytes) to the mark; None where it was not reached."""
    found = crossing(result["curve"], mark)
    return None if found is None else (found[0], found[1], result["bytes"] * found[0] / result["curve"][-1][0])


def table_rows(stored: Stored, task: str, cluster: str, seeds: Collection[int] = ()) -> list[dict[str, Any]]:
    """Return a row for each algorithm that was run: means over `seeds`, by default all.

    `seconds` is None where a seed did not arrive.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for run, result in stored.runs.items():
        if (run.task, run.cluster) == (task, cluster) and (not seeds or run.seed in seeds):
            found.setdefault((run.engine, run.algorithm), []).append((run.seed, result))
    return [_row(stored, task, key, results) for key, results in found.items()]


def _row(stored: Stored, task: str, key: tuple[str, str], results: list[Any]) -> dict[str, Any]:
    marks = [to_mark(result, TASKS[task].mark) for _, result in results]
    first = [alone(stored, task, seed) for seed, _ in results]
    ratios = [m[0] / f for m, f in zip(marks, first, strict=True) if m and f]
    reached, curves = len(ratios) == len(marks), [result["curve"] for _, result in results]
    times = [m[1] / (f * TASKS[task].step_s) for m, f in zip(marks, first, strict=True) if m and f]
    return {
        "engine": key[0],
        "algorithm": key[1],
        "seeds": len(results),
        "ratios": ratios if reached else None,
        "seconds": statistics.fmean(m[1] for m in marks) if reached else None,
        "of_alone": statistics.fmean(times) if reached else None,
        "bytes": statistics.fmean(m[2] for m in marks) if reached else None,
        "accuracy": statistics.fmean(curve[-1][2] for curve in curves),
        "total_s": statistics.fmean(curve[-1][1] for curve in curves),
        "tau": statistics.fmean(result["tau"] for _, result in results),
    }


def alone(stored: Stored, task: str, seed: int) -> float | None:
    """Return the batches of one machine to the mark."""
    found = crossing(stored.trajectories[task, EXACT[0], 1, seed], TASKS[task].mark)
    return None if found is None else found[0]


# -- the table of `nfdt advise` ------------------------------------------------------------------------------------
def rows_of_table(stored: Stored) -> list[Row]:
    """Return its rows: those of the clusters that are not held out."""
    return [
        Row(
            row["engine"],
            row["algorithm"],
            task,
            cluster,
            Place.of(cluster_of(file_of(cluster), task)),
            row["seeds"],
            *(None if row["ratios"] is None else round(f(row["ratios"]), 3) for f in (statistics.fmean, min, max)),
        )
        for task in TABLED
        for cluster in NAMES
        for row in table_rows(stored, task, cluster)
    ]


def write_table(stored: Stored, file: Path) -> None:
    """Write the table, a row a line."""
    lines = [json.dumps({**asdict(row), "place": astuple(row.place)}) for row in rows_of_table(stored)]
    file.write_text('{"rows": [\n' + ",\n".join(lines) + "\n]}\n")


def judge(stored: Stored, tasks: Sequence[str], seeds: Collection[int]) -> None:
    """Print the advice beside the order measured by `seeds`, on held-out clusters and the table's own without its rows.

    One machine is in the order: where no algorithm is expected to be faster, the advice is to train on it. A task that
    the table lacks tests whether the advice holds for another script.
    """
    whole, rows, kinds = Table(rows_of_table(stored)), [], []
    for task in tasks:
        for cluster in (*HELD_OUT, *NAMES):
            judged = table_rows(stored, task, cluster, seeds)
            found = {f"{row['engine']} {row['algorithm']}": row["of_alone"] for row in judged}
            measured = {name: time for name, time in found.items() if time is not None} | {ALONE: 1.0}
            if len(measured) > 3:
                rows.append(_judged(whole.without([cluster]), task, cluster, measured, stored))
                kinds.append(TASK if task not in TABLED else HELD if cluster in HELD_OUT else OWN)
    heads = ("cluster", "advised", "its place", "expected", "measured", "best", "its time", "sure")
    harness.table("Advice on clusters that the table lacks; times over one machine's", heads, rows)
    if silent := sum(row[2] == "-" for row in rows):
        harness.console.print(f"{silent} without an answer, which are not among those below")
    for kind in (HELD, OWN, TASK):
        right = [
            row[2] in ("1", "2")
            for row, its in zip(rows, kinds, strict=True)
            if its == kind and row[2] not in ("-", NOT_RUN)
        ]
        if right:
            claim = f"clusters {kind} where the advised algorithm is one of the first two by measured time"
            harness.verdict(claim, [statistics.fmean(right)], at_least=1)


def _judged(known: Table, task: str, cluster: str, measured: dict[str, float], stored: Stored) -> list[str]:
    of, nbytes = TASKS[task], nbytes_of(task)
    name = f"{task}, {cluster}" + (" (held out)" if cluster in HELD_OUT else "")
    try:
        found = rank(known, cluster_of(file_of(cluster), task), ScriptProbe(of.step_s, nbytes, nbytes, of.steps))
    except UserError as error:
        return [name, str(error).partition(":")[0], *["-"] * 6]
    first, order = found.candidates[0], sorted(measured, key=lambda each: measured[each])
    advised = f"{first.engine} {first.algorithm}" if first.time < 1 else ALONE
    key, best = (first.engine, first.algorithm, task, cluster), order[0]
    was_run = any((r.engine, r.algorithm, r.task, r.cluster) == key for r in stored.runs)
    place = str(order.index(advised) + 1) if advised in order else "not reached" if was_run else NOT_RUN
    own = f"{measured[advised]:.2f}" if advised in order else "-"
    return [name, advised, place, f"{min(first.time, 1.0):.2f}", own, best, f"{measured[best]:.2f}", found.sure]
