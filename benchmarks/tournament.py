"""The tournament: every algorithm of both engines on described clusters, in time, bytes and accuracy.

    python benchmarks/tournament.py --quick                        # two algorithms on one cluster; a minute
    nice -n 19 python benchmarks/tournament.py --budget-s 1200     # 20 minutes of the work; the same goes on with it
    python benchmarks/tournament.py --budget-s -1                  # the tables of the stored results, no training
    python benchmarks/tournament.py --budget-s -1 --table frontends/advise/table.json    # what `nfdt advise` reads
    python benchmarks/tournament.py --held-out --budget-s 600      # the clusters that are not in that table

Everything is on the simulated clock: gradients are real, and a batch takes its task's `step_s` over a node's speed.
Every algorithm has the script's own learning rate, as `hfdt run` and `nfdt run` would give it. "Equal samples": all
have seen the same number of rows at the end. HFDT's ranks divide the script's batch; with `--batch per-worker` each has
whole batches. Results are JSON lines in --out, and are not repeated.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from harness import console, table
from tournament_tasks import TASKS
from tournament_training import PER_WORKER, Curve, Ranks, Run, Simulator, cluster_of, simulator, trajectory

NFDT = (
    "ddc_asgd",
    "ssgd",
    "group_sync",
    "server_optimizer(local_steps=8, lr=0.1)",
    "ssp",
    "dana_dc",
    "k_sync",
    "rennala",
    "ringmaster",
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
CLUSTERS = harness.ROOT / "benchmarks/clusters"
NAMES = ("equal", "unequal", "slow-link", "terminal-edge-cloud", "fluctuating", "equal-4", "equal-16")
HELD_OUT = ("six-unequal", "twelve-slow-link", "ten-fluctuating", "five-layered", "two-fast")
HEADS = ("algorithm", "seconds to mark", "of alone", "MB to mark", "accuracy", "seconds in all", "staleness")


def file_of(cluster: str) -> Path:
    """Return the file of a cluster of either list."""
    return CLUSTERS / ("held_out" if cluster in HELD_OUT else "") / f"{cluster}.yaml"


def runs(given: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs, seeds outermost: a table of one seed is complete before the next begins."""
    for task in given.tasks:
        for seed in given.seeds:
            for cluster in given.clusters:
                for engine, algorithms in (("hfdt", HFDT), ("nfdt", NFDT)):
                    for algorithm in algorithms:
                        if not given.algorithms or algorithm.partition("(")[0].split()[0] in given.algorithms:
                            yield Run(engine, algorithm, task, cluster, seed)


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


class Trainer:
    """Trains what is not stored. The models of a task are made once."""

    def __init__(self, stored: Stored) -> None:
        self._stored, self._ranks, self._simulators = stored, dict[str, Ranks](), dict[str, Any]()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *error: object) -> None:
        for context, _ in self._simulators.values():
            context.__exit__(None, None, None)

    def result(self, run: Run) -> dict[str, Any]:
        """Return the result of one run."""
        cluster = cluster_of(file_of(run.cluster), run.task)
        if run.engine == "nfdt":
            return self._simulator(run.task).train(run, cluster)
        from hfdt.cost.on_cluster import Load, exchanges

        task, name = TASKS[run.task], run.algorithm.removesuffix(PER_WORKER)
        ranks, per_worker = self._of(run.task), run.algorithm.endswith(PER_WORKER)
        nbytes, slots = (4 * sum(int(v.shape.num_elements()) for v in vs) for vs in (ranks.weights, ranks.slots))
        load = Load(task.steps, task.epochs, nbytes, slots, per_worker, run.seed)
        moments = exchanges(cluster, name, load)
        curve, at = list[tuple[int, float, float]](), iter(moments)
        moment = next(at)
        for done, accuracy in self._trajectory(run, len(cluster.workers)):
            while moment.batches < done:
                moment = next(at)
            curve.append((done, round(moment.seconds, 4), accuracy))
        return {"curve": curve, "bytes": round(moments[-1].nbytes), "tau": 0.0}

    def alone(self, task: str, seed: int) -> Curve:
        """Return the curve of one node of speed 1."""
        found = self._trajectory(Run("hfdt", "allreduce", task, "", seed), 1)
        return [(done, done * TASKS[task].step_s, accuracy) for done, accuracy in found]

    def _trajectory(self, run: Run, n: int) -> list[tuple[int, float]]:
        exact = run.algorithm in ("allreduce", HFDT[-1])  # one machine's numbers at any number of ranks
        key = (run.task, "allreduce" if exact else run.algorithm, 1 if exact else n, run.seed)
        if key not in self._stored.trajectories:
            self._stored.add_trajectory(key, trajectory(self._of(run.task), *key[1:]))
        found: list[tuple[int, float]] = self._stored.trajectories[key]
        return found

    def _of(self, task: str) -> Ranks:
        if task not in self._ranks:
            self._ranks[task] = Ranks(task)
        return self._ranks[task]

    def _simulator(self, task: str) -> Simulator:
        if task not in self._simulators:
            context = simulator(task)
            self._simulators[task] = context, context.__enter__()
        found: Simulator = self._simulators[task][1]
        return found


def to_mark(result: dict[str, Any], mark: float) -> tuple[int, float, float] | None:
    """Return (batches, seconds, bytes) to the mark; None where it was not reached."""
    last = result["curve"][-1][0]
    reached = next(((done, at) for done, at, accuracy in result["curve"] if accuracy >= mark), None)
    return None if reached is None else (*reached, result["bytes"] * reached[0] / last)


def show(given: argparse.Namespace, stored: Stored) -> None:
    """Print one table for each task and cluster, of means over seeds."""
    for task in given.tasks:
        for cluster in given.clusters:
            rows = sorted(table_rows(stored, task, cluster), key=lambda row: (row["seconds"] or 1e9, -row["accuracy"]))
            if rows:
                seeds = max(row["seeds"] for row in rows)
                title = f"{task} on {cluster}: to {TASKS[task].mark:.0%}; {seeds} seed{'s' * (seeds > 1)}"
                table(title, HEADS, [_cells(row) for row in rows])


def table_rows(stored: Stored, task: str, cluster: str) -> list[dict[str, Any]]:
    """Return a row for each algorithm that was run: means over seeds. `seconds` is None where a seed did not arrive."""
    found: dict[tuple[str, str], list[Any]] = {}
    for run, result in stored.runs.items():
        if (run.task, run.cluster) == (task, cluster):
            found.setdefault((run.engine, run.algorithm), []).append((run.seed, result))
    return [_row(stored, task, key, results) for key, results in found.items()]


def _row(stored: Stored, task: str, key: tuple[str, str], results: list[Any]) -> dict[str, Any]:
    marks = [to_mark(result, TASKS[task].mark) for _, result in results]
    alone = [stored.trajectories[task, "allreduce", 1, seed] for seed, _ in results]
    first = [next((done for done, accuracy in curve if accuracy >= TASKS[task].mark), None) for curve in alone]
    reached = all(m is not None for m in marks) and all(f is not None for f in first)
    curves = [result["curve"] for _, result in results]
    return {
        "engine": key[0],
        "algorithm": key[1],
        "seeds": len(results),
        "batches": statistics.fmean(m[0] for m in marks) if reached else None,
        "seconds": statistics.fmean(m[1] for m in marks) if reached else None,
        "of_alone": statistics.fmean(m[1] / (f * TASKS[task].step_s) for m, f in zip(marks, first, strict=True))
        if reached
        else None,
        "bytes": statistics.fmean(m[2] for m in marks) if reached else None,
        "accuracy": statistics.fmean(curve[-1][2] for curve in curves),
        "spread": max(curve[-1][2] for curve in curves) - min(curve[-1][2] for curve in curves),
        "total_s": statistics.fmean(curve[-1][1] for curve in curves),
        "tau": statistics.fmean(result["tau"] for _, result in results),
    }


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
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["cnn"])
    parser.add_argument("--clusters", nargs="+", choices=(*NAMES, *HELD_OUT), default=list(NAMES))
    parser.add_argument("--held-out", action="store_true", help="the clusters that the table of `nfdt advise` lacks")
    parser.add_argument("--algorithms", nargs="+", help="names, without options; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="of training; the next call goes on")
    parser.add_argument("--quick", action="store_true", help="two algorithms on one cluster")
    parser.add_argument("--out", type=Path, default=harness.ROOT / "benchmarks/results/tournament.jsonl")
    parser.add_argument("--table", type=Path, help="write the rows as JSON")
    given = parser.parse_args()
    given.clusters = list(HELD_OUT) if given.held_out else given.clusters
    if given.quick:
        given.clusters, given.seeds, given.algorithms = ["equal-4"], [0], ["allreduce", "ddc_asgd"]
    return given


def train(given: argparse.Namespace, stored: Stored) -> int:
    """Train what is not stored until the budget is used; return how many runs are missing."""
    began, missing = time.monotonic(), 0
    with Trainer(stored) as trainer:
        for run in runs(given):
            if run in stored.runs:
                continue
            if time.monotonic() - began > given.budget_s:
                missing += 1
                continue
            trainer.alone(run.task, run.seed)
            result = trainer.result(run)
            stored.add(run, result)
            done, at, accuracy = result["curve"][-1]
            name = f"{run.engine} {run.algorithm}, {run.task} on {run.cluster}, seed {run.seed}"
            console.print(f"  {name}: {accuracy:.3f} after {done} batches, {at:.2f} s", style="dim")
    return missing


def written(stored: Stored, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the table of `nfdt advise`: rows of the clusters that are not held out."""
    rows = [
        {"task": task, "cluster": cluster, **row}
        for task in tasks
        for cluster in NAMES
        for row in table_rows(stored, task, cluster)
    ]
    return {"rows": rows}


def main() -> int:
    import tensorflow as tf

    given = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    stored = Stored(given.out)
    missing = train(given, stored)
    show(given, stored)
    if given.table:
        given.table.write_text(json.dumps(written(stored, list(TASKS))) + "\n")
    if missing:
        console.print(f"{missing} runs are still to do: the same command goes on with them")
    return 0


if __name__ == "__main__":
    harness.conclude(main)
