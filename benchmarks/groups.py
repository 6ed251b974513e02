"""group_sync on unequal workers: simulated time to the accuracy that one machine reaches in two epochs.

    python benchmarks/groups.py                              # unequal12.yaml; a quarter of an hour on one core
    python benchmarks/groups.py --rules group_sync,ssgd --rates 4 --epochs 2

One machine trains as in rules.py: two epochs, with a tenth of its rate for the last 30 %. The others train at a
constant rate, times each of --rates (a round's mean may allow a larger one than a batch), until they reach that
accuracy on the test data or have done --epochs. Model, data, scheduler, algorithm and applier are those of rules.py;
the workers' times are from the cluster file.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import keras
import rules_training as training
import tensorflow as tf
from harness import SCRIPTS, console, table
from rules import split

from fdt.network import Pace
from fdt.network.reading import read_cluster

CLUSTER = SCRIPTS.parent / "unequal12.yaml"
LOOKS = 10  # at the test data, in an epoch


class Constant(training.Task):
    """fashion_mnist at a constant rate."""

    def optimizer(self, steps: int, factor: float) -> Any:
        return keras.optimizers.SGD(0.02 * factor, momentum=0.9)


class Unequal(training.Cluster):
    """Workers whose steps take the times of the cluster file. Training stops when `goal` (points) is reached."""

    def __init__(self, run: training.Run, task: training.Task, file: Path, goal: float) -> None:
        super().__init__(run, task)
        described = read_cluster(file)
        self._paces = [Pace(node, described.step_s, (run.seed,)) for node in described.workers]
        self._goal, self._seen = goal, 0
        self.curve: list[tuple[float, float, float]] = []  # epochs, simulated seconds, points

    def step_s(self, worker: int) -> float:
        return self._paces[worker].seconds(self.now)

    def pushed(self) -> bool:
        """Return False when the accuracy is reached."""
        self._seen += 1
        if self._seen % (self.steps // LOOKS):
            return True
        found = training.accuracy(self.applier.params, *self.test)
        self.curve.append((self._seen / self.steps, self.now, found))
        return found < self._goal


def curve(rule: str, rate: float, given: argparse.Namespace, goal: float) -> list[tuple[float, float, float]]:
    workers = len(read_cluster(given.cluster).workers)
    run = training.Run("fashion_mnist", rule, workers, given.seed, given.epochs, given.held_out, rate)
    cluster = Unequal(run, Constant(*astuple(training.TASKS["fashion_mnist"])), given.cluster, goal)
    for epoch in range(given.epochs):
        if not cluster.epoch(epoch):
            break
    return cluster.curve


def points_after(curve: Sequence[tuple[float, float, float]], epochs: float) -> float | None:
    return next((points for at, _, points in curve if at >= epochs - 0.5 / LOOKS), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, default=CLUSTER)
    parser.add_argument("--rules", default="group_sync,ssgd,asgd")
    parser.add_argument("--rates", default="1,4", help="times the script's; asgd also by 1/12")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--goal", type=float, help="points to reach, where it is known what alone reaches")
    parser.add_argument("--out", type=Path, default=Path("groups.jsonl"))
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    alone = given.goal
    if alone is None:
        machine = training.Run("fashion_mnist", training.ALONE, 1, given.seed, 2, given.held_out)
        alone = training.train(machine)["accuracy"]
        console.print(f"alone, 2 epochs: {alone:.2f}")
    rows = []
    for rule in split(given.rules):
        extra = [1 / 12] if rule == "asgd" else []
        for rate in [*(float(text) for text in given.rates.split(",")), *extra]:
            found = curve(rule, rate, given, alone)
            with given.out.open("a") as out:
                out.write(json.dumps({"rule": rule, "rate": rate, "seed": given.seed, "curve": found}) + "\n")
            rows.append([rule, f"{rate:.3g}", *told(found, alone)])
            console.print("  " + ", ".join(rows[-1]), style="dim")
    heads = ["algorithm", "rate x", "simulated s to it", "epochs to it", "best", "after 1 epoch", "after 2"]
    table(f"{given.cluster.stem}, to {alone:.2f} points (alone, 2 epochs), seed {given.seed}", heads, rows)


def told(found: Sequence[tuple[float, float, float]], goal: float) -> list[str]:
    epochs, seconds, points = found[-1]
    reached = [f"{seconds:.0f}", f"{epochs:.1f}"] if points >= goal else ["not reached", f"({epochs:.1f})"]
    after = [points_after(found, at) for at in (1, 2)]
    return [*reached, f"{max(p for *_, p in found):.1f}", *("-" if p is None else f"{p:.1f}" for p in after)]


if __name__ == "__main__":
    main()
