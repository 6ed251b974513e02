"""All asynchronous algorithms on real data: accuracy by number of workers, mean and spread over seeds.

    python benchmarks/rules.py                                   # Fashion-MNIST; about half an hour on one core
    python benchmarks/rules.py --rules asgd,ddc_asgd --workers 8 --seeds 0
    python benchmarks/rules.py --data cifar10 --workers 8,16     # hours
    python benchmarks/rules.py --budget-s 200                    # 200 s of the work; the same command continues it
    python benchmarks/rules.py --held-out --seeds 10 --rates 1,0.3,0.1   # test on 10,000 rows of the training data
    python benchmarks/rules.py --tuned --seeds 0                 # each algorithm at its best rate on those rows

It uses the server's own scheduler, algorithm and compiled applier in one process, with a simulated clock: a worker's
step takes Gamma(100) of mean 1, so tau is about workers - 1. Results are stored in --out, a JSON line each, and are not
repeated. A run whose weights become NaN or infinite ends there, with the accuracy of its network: 10 points.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tensorflow as tf
from harness import console, table
from rules_training import ALONE, TASKS, Run, train

from nfdt import algorithms

WAITING = ("ssgd", "k_sync", "ssp", "group_sync")  # they wait: another bargain than staleness


def runs(given: argparse.Namespace, done: dict[Run, dict[str, float]]) -> list[Run]:
    """Return the runs, seeds outermost: a table of one seed is complete before the next begins."""
    task = TASKS[given.data]
    epochs = given.epochs or task.epochs
    workers = [int(n) for n in given.workers.split(",")] if given.workers else task.workers
    wanted = []
    for seed in (int(s) for s in given.seeds.split(",")):
        wanted.append(Run(given.data, ALONE, 1, seed, epochs, given.held_out))
        for n, rule in itertools.product(workers, split(given.rules)):
            at_one = Run(given.data, rule, n, seed, epochs, given.held_out)
            rates = [tuned(at_one, done)] if given.tuned else [float(text) for text in given.rates.split(",")]
            wanted += [replace(at_one, rate=rate) for rate in rates]
    return wanted


def tuned(run: Run, done: dict[Run, dict[str, float]]) -> float:
    """Return the best rate of an algorithm and number of workers on held-out rows, over seeds; 1 if none was run."""
    found: dict[float, list[float]] = {}
    for other, result in done.items():
        if other.held_out and replace(other, seed=run.seed, rate=run.rate, held_out=run.held_out) == run:
            found.setdefault(other.rate, []).append(result["accuracy"])
    return max(found, key=lambda rate: statistics.fmean(found[rate]), default=1.0)


def split(text: str) -> list[str]:
    """`asgd;ssp(bound=1)`, or with commas where no rule has parameters; "": all of them."""
    if not text:
        # gradients, here
        names = [name for name in algorithms.names() if algorithms.make(name).local_steps is None]
        return [name for name in names if name not in WAITING] + [name for name in names if name in WAITING]
    return [rule.strip() for rule in text.split(";" if ";" in text or "(" in text else ",")]


def read(out: Path) -> dict[Run, dict[str, float]]:
    if not out.exists():
        return {}
    lines = (json.loads(line) for line in out.read_text().splitlines())
    return {Run(**line["run"]): line["result"] for line in lines}


def show(wanted: Sequence[Run], done: dict[Run, dict[str, float]], by_rate: bool) -> None:
    """Print the mean over seeds (smallest .. largest), a dash where nothing was run. `by_rate`: a row for each rate."""
    columns = sorted({run.workers for run in wanted if run.rule != ALONE})
    rows = []
    for name in dict.fromkeys(label(run, by_rate) for run in wanted):
        cells = [[run for run in wanted if label(run, by_rate) == name and run.workers in (n, 1)] for n in columns]
        rows.append([name, *(cell([done[run]["accuracy"] for run in runs if run in done]) for runs in cells)])
    title = f"{wanted[0].data}, {wanted[0].epochs} epochs, accuracy in points{', held out' * wanted[0].held_out}"
    table(title, ["algorithm", *(f"{n} workers" for n in columns)], rows)


def label(run: Run, by_rate: bool) -> str:
    return f"{run.rule}, rate x {run.rate:g}" if by_rate and run.rule != ALONE else run.rule


def cell(points: Sequence[float]) -> str:
    if len(points) < 2:
        return f"{points[0]:.1f}" if points else "-"
    return f"{statistics.fmean(points):.1f} ({min(points):.1f} .. {max(points):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=TASKS, default="fashion_mnist")
    parser.add_argument("--rules", default="")
    parser.add_argument("--workers", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--rates", default="1", help="times the task's")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--tuned", action="store_true", help="at the rates that --out has as best on held-out rows")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("rules.jsonl"))
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    done, start = read(given.out), time.monotonic()
    wanted = runs(given, done)
    for run in wanted:
        if run in done or time.monotonic() - start > given.budget_s:
            continue
        done[run] = train(run)
        name = label(run, by_rate=run.rate != 1)
        console.print(f"  {name}, {run.workers} workers, seed {run.seed}: {done[run]['accuracy']:.2f}", style="dim")
        with given.out.open("a") as out:
            out.write(json.dumps({"run": asdict(run), "result": done[run]}) + "\n")
    show(wanted, done, by_rate="," in given.rates)
    if missing := sum(run not in done for run in wanted):
        console.print(f"{missing} of {len(wanted)} runs are still to do: the same command goes on with them")


if __name__ == "__main__":
    main()
