"""The tournament: every algorithm of both engines on described clusters, in time, bytes and accuracy.

    python benchmarks/tournament.py --quick                        # two algorithms on one cluster; a minute
    nice -n 19 python benchmarks/tournament.py --budget-s 1200     # 20 minutes of the work; the same goes on with it
    python benchmarks/tournament.py --budget-s -1                  # the tables of the stored results, no training
    python benchmarks/tournament.py --budget-s -1 --table frontends/advise/table.json    # what `nfdt advise` reads
    python benchmarks/tournament.py --held-out --budget-s 600      # the clusters that are not in that table
    python benchmarks/tournament.py --budget-s -1 --judge          # is the advice right on clusters that it lacks?
    python benchmarks/tournament.py --budget-s -1 --judge --seeds 2    # the same, measured by one seed

Everything is on the simulated clock: gradients are real, and a batch takes its task's `step_s` over a node's speed.
Every algorithm has the script's own learning rate, as `hfdt run` and `nfdt run` would give it. "Equal samples": all
have seen the same number of rows at the end. HFDT's ranks divide the script's batch; with `--batch per-worker` each has
whole batches. Results are JSON lines in --out, and are not repeated.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
from harness import console, table
from tournament_results import (
    EXACT,
    HELD_OUT,
    HFDT,
    NAMES,
    NFDT,
    RESNET20,
    TABLED,
    Stored,
    file_of,
    judge,
    table_rows,
    write_table,
)
from tournament_tasks import TASKS, nbytes_of
from tournament_training import PER_WORKER, Run, Training, cluster_of, trajectory

from hfdt.cost.on_cluster import Load, exchanges

HEADS = ("algorithm", "seconds to mark", "of alone", "MB to mark", "accuracy", "seconds in all", "staleness")


def runs(given: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs, seeds outermost: a table of one seed is complete before the next begins."""
    for task in given.tasks:
        for seed in given.seeds:
            for cluster in given.clusters:
                if task == "resnet20" and cluster not in RESNET20:
                    continue
                for engine, algorithms in (("hfdt", HFDT), ("nfdt", NFDT)):
                    for algorithm in algorithms:
                        if not given.algorithms or algorithm.partition("(")[0].split()[0] in given.algorithms:
                            yield Run(engine, algorithm, task, cluster, seed)


def result(run: Run, stored: Stored) -> dict[str, Any]:
    """Return the result of one run, which is trained."""
    cluster = cluster_of(file_of(run.cluster), run.task)
    if run.engine == "nfdt":
        return Training(run, cluster).result()
    task, nbytes = TASKS[run.task], nbytes_of(run.task)
    per_worker, name = run.algorithm.endswith(PER_WORKER), run.algorithm.removesuffix(PER_WORKER)
    moments = exchanges(cluster, name, Load(task.steps, task.epochs, nbytes, nbytes, per_worker, run.seed))
    curve, at = list[tuple[int, float, float]](), iter(moments)
    moment = next(at)
    for done, accuracy in hfdt_curve(run, stored, len(cluster.workers)):
        while moment.batches < done:
            moment = next(at)
        curve.append((done, round(moment.seconds, 4), accuracy))
    return {"curve": curve, "bytes": round(moments[-1].nbytes), "tau": 0.0}


def hfdt_curve(run: Run, stored: Stored, n: int) -> list[tuple[int, float]]:
    """Return the trajectory of one of HFDT's algorithms, which is trained once for each number of ranks."""
    exact = run.algorithm in EXACT
    key = (run.task, EXACT[0] if exact else run.algorithm, 1 if exact else n, run.seed)
    if key not in stored.trajectories:
        stored.add_trajectory(key, trajectory(*key))
    found: list[tuple[int, float]] = stored.trajectories[key]
    return found


def show(given: argparse.Namespace, stored: Stored) -> None:
    """Print one table for each task and cluster, of means over seeds."""
    for task in given.tasks:
        for cluster in given.clusters:
            rows = sorted(table_rows(stored, task, cluster), key=lambda row: (row["seconds"] or 1e9, -row["accuracy"]))
            if rows:
                seeds = max(row["seeds"] for row in rows)
                title = f"{task} on {cluster}: to {TASKS[task].mark:.0%}; {seeds} seed{'s' * (seeds > 1)}"
                table(title, HEADS, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    known = row["seconds"] is not None
    marks = [f"{row['seconds']:.2f}", f"{row['of_alone']:.2f}", f"{row['bytes'] / 1e6:.1f}"] if known else ["-"] * 3
    return [
        f"{row['engine']} {row['algorithm']}",
        *marks,
        f"{row['accuracy']:.3f}",
        f"{row['total_s']:.2f}",
        f"{row['tau']:.1f}",
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = "default: all; a seed of resnet20 takes an hour, on five of the clusters"
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TABLED), help=tasks)
    parser.add_argument("--clusters", nargs="+", choices=(*NAMES, *HELD_OUT), default=list(NAMES))
    parser.add_argument("--held-out", action="store_true", help="the clusters that the table of `nfdt advise` lacks")
    parser.add_argument("--algorithms", nargs="+", help="names, without options; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="of training; the next call goes on")
    parser.add_argument("--quick", action="store_true", help="two algorithms on one cluster")
    parser.add_argument("--out", type=Path, default=harness.ROOT / "benchmarks/results/tournament.jsonl")
    parser.add_argument("--table", type=Path, help="write the table of `nfdt advise`")
    parser.add_argument("--judge", action="store_true", help="compare advice with the measured order")
    given = parser.parse_args()
    given.clusters = list(HELD_OUT) if given.held_out else given.clusters
    if given.quick:
        given.clusters, given.seeds, given.algorithms = ["equal-4"], [0], ["allreduce", "ddc_asgd"]
    return given


def train(given: argparse.Namespace, stored: Stored) -> int:
    """Train what is not stored until the budget is used; return how many runs are missing."""
    began, missing = time.monotonic(), 0
    for run in runs(given):
        if run in stored.runs:
            continue
        if time.monotonic() - began > given.budget_s:
            missing += 1
            continue
        found = result(run, stored)
        stored.add(run, found)
        done, at, accuracy = found["curve"][-1]
        name = f"{run.engine} {run.algorithm}, {run.task} on {run.cluster}, seed {run.seed}"
        console.print(f"  {name}: {accuracy:.3f} after {done} batches, {at:.2f} s", style="dim")
    return missing


def main() -> int:
    given = arguments()
    stored = Stored(given.out)
    missing = train(given, stored)
    show(given, stored)
    if given.table:
        write_table(stored, given.table)
    if given.judge:
        judge(stored, given.tasks, given.seeds)
    if missing:
        console.print(f"{missing} runs are still to do: the same command goes on with them")
    return 0


if __name__ == "__main__":
    harness.conclude(main)
