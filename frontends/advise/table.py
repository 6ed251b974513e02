"""Stored results of the tournament: how many batches each algorithm needs to reach the accuracy of one machine.

A cluster's place in the table is its number of workers, how unequal their speeds are, and how much they fluctuate.
Links are no part of it: they change the time of a batch, and hardly the number of batches.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fdt.network import Cluster

FILE = Path(__file__).with_name("table.json")
NEAR = 3  # clusters of the table whose rows count
OUTSIDE = 1.0  # a cluster that is farther from all of the table is outside of it: twice or half as many workers
REACHED = 0.5  # an algorithm arrives where it did, for each task, in more than this part of rows: the nearest, the near


@dataclass(frozen=True)
class Place:
    """A cluster's coordinates, for distances between clusters: logarithms to base 2, so that 1 is a factor of two.

    Attributes:
        workers: Of the number of workers.
        unequal: Of the fastest speed over the slowest.
        fluctuating: Of the factor by which slow periods lengthen many steps in a row.
    """

    workers: float
    unequal: float
    fluctuating: float

    @classmethod
    def of(cls, cluster: Cluster) -> "Place":
        """Return the coordinates of a cluster."""
        groups = [node.group for node in cluster.workers]
        speeds = [group.speed.mean for group in groups]
        factors = [s.lengthens for group in groups if (s := group.slowdowns) is not None]
        return cls(math.log2(len(groups)), math.log2(max(speeds) / min(speeds)), math.log2(max(factors, default=1.0)))

    def distance(self, other: "Place") -> float:
        """Return the distance: factors of two in workers, and half as much weight for the others."""
        apart = (self.unequal - other.unequal) ** 2 + (self.fluctuating - other.fluctuating) ** 2
        return math.sqrt((self.workers - other.workers) ** 2 + apart / 4)


@dataclass(frozen=True)
class Batches:
    """How many batches an algorithm needs, over one machine's: the expected number, the least, and the most."""

    expected: float
    least: float
    most: float


@dataclass(frozen=True)
class Row:
    """One algorithm on one cluster for one task. `batches`: over those of one machine; None: not reached."""

    engine: str
    algorithm: str
    task: str
    cluster: str
    place: Place
    seeds: int
    batches: float | None
    least: float | None
    most: float | None


class Table:
    """The results of the tournament: one row for each algorithm, task and cluster."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    @classmethod
    def read(cls, file: Path = FILE) -> "Table":
        """Read the kept table."""
        found: Sequence[Mapping[str, Any]] = json.loads(file.read_text())["rows"]
        return cls([Row(**{**row, "place": Place(*row["place"])}) for row in found])

    def without(self, clusters: Iterable[str]) -> "Table":
        """Return the table without some clusters."""
        left_out = set(clusters)
        return Table([row for row in self.rows if row.cluster not in left_out])

    @property
    def algorithms(self) -> list[tuple[str, str]]:
        """All (engine, algorithm)."""
        return list(dict.fromkeys((row.engine, row.algorithm) for row in self.rows))

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return sorted({row.task for row in self.rows})

    def distance(self, place: Place) -> float:
        """Return the distance to the nearest cluster."""
        return min((row.place.distance(place) for row in self.rows), default=math.inf)

    def nearest(self, place: Place) -> str:
        """Return the name of the table's cluster that is nearest to `place`."""
        return min(self.rows, key=lambda row: row.place.distance(place)).cluster

    def batches(self, engine: str, algorithm: str, place: Place) -> Batches | None:
        """Return the batches of an algorithm at a place.

        The number grows with the workers. Rows with fewer workers than `place` are extrapolated by that growth. Rows
        with more are taken unchanged, so that no algorithm is expected to do better than it did.

        None: for one of the tasks the algorithm did not reach the accuracy in most rows of the nearest clusters, or of
        the near ones. Advice that does not train costs more than advice that is a little slower.
        """
        rows = [row for row in self.rows if (row.engine, row.algorithm) == (engine, algorithm)]
        near = sorted({row.place.distance(place) for row in rows})[:NEAR]
        rows = [row for row in rows if near and row.place.distance(place) <= near[-1]]
        weights = np.array([_weight(row.place.distance(place)) for row in rows])
        arrived = np.array([row.batches is not None for row in rows], bool)
        of_tasks = [np.array([row.task == task for row in rows], bool) for task in {row.task for row in rows}]
        if not rows or not all(_arrives(arrived[its], weights[its]) for its in of_tasks):
            return None
        known, power = [row for row in rows if row.batches is not None], self._growth(engine, algorithm, place)
        grown = np.array([2 ** (power * max(0.0, place.workers - row.place.workers)) for row in known])
        expected, least, most = (
            grown * [getattr(row, name) or row.batches for row in known] for name in ("batches", "least", "most")
        )
        mean = math.exp(float(np.average(np.log(expected), weights=weights[arrived])))
        return Batches(mean, min(mean, float(least.min())), max(mean, float(most.max())))

    def _growth(self, engine: str, algorithm: str, place: Place) -> float:
        """Return p where an algorithm's batches grow as the p-th power of the workers: least squares, tasks apart."""
        together = spread = 0.0
        for task in self.tasks:
            key = (engine, algorithm, task)
            of_task = [row for row in self.rows if (row.engine, row.algorithm, row.task) == key and row.batches]
            if not of_task:
                continue
            weights = [_weight(row.place.distance(place)) for row in of_task]
            workers = np.array([row.place.workers for row in of_task])
            workers -= np.average(workers, weights=weights)
            logs = np.log2([row.batches or 1.0 for row in of_task])
            together += float(np.dot(weights, workers * logs))
            spread += float(np.dot(weights, workers**2))
        return max(0.0, together / spread) if spread > 1e-9 else 0.0


def _arrives(arrived: Any, weights: Any) -> bool:
    """Return whether an algorithm arrives in more than REACHED of a task's nearest rows, and of its near ones."""
    nearest = weights == weights.max()
    return bool(arrived[nearest].mean() > REACHED and weights[arrived].sum() > REACHED * weights.sum())


def _weight(distance: float) -> float:
    """Return how much a row counts."""
    return 1 / (0.1 + distance) ** 2
