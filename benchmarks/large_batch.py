"""The ceiling of asynchronous algorithms: what large batches reach in as many sequential rounds as workers leave.

    python benchmarks/large_batch.py                      # tune on held-out rows (seed 10), then test (seeds 0, 1, 2)
    python benchmarks/large_batch.py --workers 32 --optimizers sgd,adam
    python benchmarks/large_batch.py --budget-s 200       # 200 s of the work; the same command continues it

A round of n workers is one batch of 64 n rows: an epoch has 1/n of the updates that one machine makes. Each optimizer
of Keras runs with linear warm-up and cosine decay. Its rate, and the share of rounds that warm up, are those that are
best on 10,000 rows held out of the training data; test rows are used once, with those. Results are stored in --out, a
JSON line each, and are not repeated.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from harness import console, table
from rules_training import BATCH, TASKS, Run, accuracy, finite, gradient, initial_weights, rows_of

OPTIMIZERS: Mapping[str, Any] = {
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    "adam": keras.optimizers.Adam,
    "lamb": keras.optimizers.Lamb,
    "muon": lambda rate: keras.optimizers.Muon(rate, weight_decay=0.0, adam_weight_decay=0.0),
}
RATES = {
    "sgd": (0.05, 0.1, 0.2, 0.4),
    "adam": (0.003, 0.006, 0.012, 0.024),
    "lamb": (0.01, 0.02, 0.04, 0.08),
    "muon": (0.005, 0.01, 0.02, 0.04),
}
WARM_UPS = (0.05, 0.2)
TUNING_SEED = 10


@dataclass(frozen=True)
class Training:
    """A training to run. `warm_up`: the share of all rounds in which the rate rises."""

    data: str
    optimizer: str
    workers: int
    rate: float
    warm_up: float
    seed: int
    held_out: bool


def train(training: Training) -> float:
    """Return accuracy in points."""
    task = TASKS[training.data]
    images, labels, rows, test = rows_of(Run(training.data, "", 1, training.seed, 1, training.held_out))
    rng = np.random.default_rng(training.seed)
    weights = initial_weights(task.shapes, rng)
    size = BATCH * training.workers
    rounds = -(-len(rows) // size) * task.epochs
    warm_up = max(1, round(training.warm_up * rounds))
    rate = keras.optimizers.schedules.CosineDecay(
        training.rate / warm_up, rounds - warm_up, warmup_target=training.rate, warmup_steps=warm_up
    )
    optimizer = OPTIMIZERS[training.optimizer](rate)
    optimizer.build(weights)

    @tf.function(autograph=False)
    def update(gradients: list[Any]) -> None:
        optimizer.apply(gradients, weights)

    for _ in range(task.epochs):
        order = rng.permutation(rows)
        for first in range(0, len(rows), size):
            batch = tf.constant(order[first : first + size], tf.int32)
            update(gradient([w.value for w in weights], images, labels, batch))
    values = [w.value for w in weights]
    return accuracy(values, *test) if finite(values) else 10.0


def tuning(data: str, optimizer: str, workers: int) -> list[Training]:
    """Return the trainings among which the best is chosen."""
    grid = itertools.product(RATES[optimizer], WARM_UPS)
    return [Training(data, optimizer, workers, rate, warm_up, TUNING_SEED, True) for rate, warm_up in grid]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=TASKS, default="fashion_mnist")
    parser.add_argument("--workers", default="8,16,32")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("large_batch.jsonl"))
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {Training(**line["training"]): line["accuracy"] for line in map(json.loads, lines)}
    end = time.monotonic() + given.budget_s

    def reach(training: Training) -> float | None:
        if training not in done and time.monotonic() < end:
            done[training] = train(training)
            console.print(f"  {training}: {done[training]:.2f}", style="dim")
            with given.out.open("a") as out:
                out.write(json.dumps({"training": asdict(training), "accuracy": done[training]}) + "\n")
        return done.get(training)

    columns = [int(n) for n in given.workers.split(",")]
    rows = {name: [name] for name in given.optimizers.split(",")}
    for n, name in itertools.product(columns, rows):
        tried = {training: reach(training) for training in tuning(given.data, name, n)}
        if None in tried.values():
            rows[name].append("-")
            continue
        best = max(tried, key=lambda training: tried[training] or 0)
        wanted = [replace(best, seed=int(seed), held_out=False) for seed in given.seeds.split(",")]
        points = [p for p in map(reach, wanted) if p is not None]
        spread = f"{statistics.fmean(points):.1f} ({min(points):.1f} .. {max(points):.1f})" if points else "-"
        rows[name].append(f"{spread}, rate {best.rate:g}, warm-up {best.warm_up:g}")
    title = f"{given.data}, {TASKS[given.data].epochs} epochs, batches of 64 n rows, accuracy in points"
    table(title, ["optimizer", *(f"n = {n}" for n in columns)], list(rows.values()))


if __name__ == "__main__":
    main()
