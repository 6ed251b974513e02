"""The ceiling of asynchronous algorithms: what large batches reach in as many sequential rounds as workers leave.

    python benchmarks/large_batch.py                      # tune on held-out rows (seed 10), then test (seeds 0, 1, 2)
    python benchmarks/large_batch.py --workers 32 --optimizers sgd,adam
    python benchmarks/large_batch.py --budget-s 200       # 200 s of the work; the same command continues it

A round of n workers is one batch of 64 n rows: an epoch has 1/n of the updates that one machine makes. Each optimizer
of Keras runs with linear warm-up and cosine decay, at each of its rates, on 10,000 rows held out of the training data.
The best one of all is then measured on test rows. Results are stored in --out, a JSON line each, and are not repeated.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
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
    "sgd": (0.025, 0.05, 0.1, 0.2, 0.4),
    "adam": (0.003, 0.006, 0.012, 0.024),
    "lamb": (0.006, 0.02, 0.06, 0.12),
    "muon": (0.005, 0.015, 0.03, 0.06),
}
WARM_UP = 0.1  # of all rounds
TUNING_SEED = 10


@dataclass(frozen=True)
class Training:
    """A training to run. `rate`: the highest; `held_out`: as in Run."""

    data: str
    optimizer: str
    workers: int
    rate: float
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
    warm_up = max(1, round(WARM_UP * rounds))
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


def read(out: Path) -> dict[Training, float]:
    lines = out.read_text().splitlines() if out.exists() else []
    return {Training(**line["training"]): line["accuracy"] for line in map(json.loads, lines)}


def row(optimizer: str, columns: Sequence[int], data: str, done: Mapping[Training, float]) -> list[str]:
    """Return a table's row: the best on held-out rows, and on test rows the mean over seeds (smallest .. largest)."""
    cells = [optimizer]
    for n in columns:
        mine = {t: points for t, points in done.items() if (t.data, t.optimizer, t.workers) == (data, optimizer, n)}
        best = max((t for t in mine if t.held_out), key=lambda t: mine[t], default=None)
        if best is None:
            cells.append("-")
            continue
        test = [points for t, points in mine.items() if not t.held_out and t.rate == best.rate]
        spread = f"; test {statistics.fmean(test):.1f} ({min(test):.1f} .. {max(test):.1f})" if test else ""
        cells.append(f"{mine[best]:.1f} at {best.rate:g}{spread}")
    return cells


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
    done, end = read(given.out), time.monotonic() + given.budget_s

    def reach(training: Training) -> float:
        """Return accuracy in points, if need be by training; 0 where the time is over."""
        if training not in done and time.monotonic() < end:
            done[training] = train(training)
            console.print(f"  {training}: {done[training]:.2f}", style="dim")
            with given.out.open("a") as out:
                out.write(json.dumps({"training": asdict(training), "accuracy": done[training]}) + "\n")
        return done.get(training, 0.0)

    columns, names = [int(n) for n in given.workers.split(",")], given.optimizers.split(",")
    for n in columns:
        tried = [Training(given.data, name, n, rate, TUNING_SEED, True) for name in names for rate in RATES[name]]
        best = max(tried, key=reach)
        for seed in given.seeds.split(","):
            reach(replace(best, seed=int(seed), held_out=False))
    title = f"{given.data}, {TASKS[given.data].epochs} epochs, batches of {BATCH} n rows, held-out accuracy in points"
    rows = [row(name, columns, given.data, done) for name in names]
    table(title, ["optimizer", *(f"n = {n}" for n in columns)], rows)


if __name__ == "__main__":
    main()
