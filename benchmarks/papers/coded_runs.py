"""The runs of source E over nodes: trainings to a mark, and synchronous steps; and times and bytes to the mark."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.papers.experiment import Measured, Results, Run, where

DIVIDED, WHOLE = "the batch is divided", "a batch per node"
RING, UNICAST, MULTICAST, CODED, ASGD = "ring all-reduce", "SSGD unicast", "SSGD multicast", "coded", "asgd"
GROUPS, CYCLIC = "coded, groups", "coded, cyclic"  # the other placements of hfdt/algorithms/coded.py
ALL, EVEN = tuple(range(2, 11)), (2, 4, 6, 8, 10)
SEEDS = 10
LONG = 600  # steps of the training whose curve goes beyond the mark


@dataclass(frozen=True)
class Cell:
    """A task on a network over numbers of nodes.

    Attributes:
        mark: The accuracy that times are taken to.
        slower_from: Nodes from which asynchronous SGD has 0.4 of the task's rate.
        both: Whether it has both rates below, of which the faster counts.
        seeds: Number of seeds that times are means of.
        part: What the cell has of one over all nodes, in words.
    """

    load: str
    task: str
    network: str
    nodes: tuple[int, ...]
    mark: float
    longest: int
    slower_from: int = 99
    both: bool = False
    seeds: int = SEEDS
    part: str = ""

    def __str__(self) -> str:
        return f"{self.task.upper()} to {self.mark:.0%}, {self.network}, {self.load}{self.part}"

    def factors(self, nodes: int) -> tuple[float, ...]:
        """Return the rates of asynchronous SGD, relative to the task's. The whole rate breaks it on many nodes."""
        if nodes >= self.slower_from:
            return (0.4,)
        return (1.0, 0.4) if self.both else (1.0,)

    def training(self, method: str, nodes: int, seed: int = 0, factor: float = 1.0) -> dict[str, Any]:
        shared = self.load == DIVIDED and method == "sgd"  # the same steps for every number of nodes
        own = {"network": "", "nodes": 1 if shared else nodes} if method == "sgd" else {}
        settings = {"load": self.load, "task": self.task, "method": method, "network": self.network, "nodes": nodes}
        return {**settings, **own, "seed": seed, "factor": factor, "mark": self.mark, "steps": self.longest}


CELLS = (
    Cell(DIVIDED, "dnn", "medium 1 Gbit/s", ALL, 0.82, 6_000),
    Cell(DIVIDED, "dnn", "medium 10 Gbit/s", ALL, 0.82, 6_000),
    Cell(DIVIDED, "cnn", "medium 1 Gbit/s", ALL, 0.6, 12_000, 8, both=True, seeds=1),
    Cell(WHOLE, "dnn", "medium 5 Gbit/s", EVEN, 0.82, 2_000),
    Cell(WHOLE, "cnn", "medium 500 Mbit/s", EVEN, 0.7, 12_000, seeds=1),
)
SEEDED = (  # the CNN's trainings on other nodes take too long for ten seeds
    replace(CELLS[2], nodes=(10,), seeds=SEEDS, part=", ten seeds at 10 nodes"),
    replace(CELLS[4], nodes=(2, 4), seeds=SEEDS, part=", ten seeds at 2 and 4 nodes"),
    replace(CELLS[4], mark=0.6, slower_from=8, seeds=SEEDS, part=", ten seeds"),
)
CURVES = (CELLS[0], CELLS[3], CELLS[2], CELLS[4])


def redundancies(nodes: int) -> list[int]:
    """Return the source's 2 and 3, and n - 1, the best of its placement on narrow networks (see E5)."""
    return sorted({r for r in (2, 3, nodes - 1) if 1 < r < nodes})


def others(nodes: int) -> list[tuple[str, int]]:
    """Return (placement, r) of the other placements, at the r that a search found to be their best on a medium."""
    found = [(CYCLIC, (nodes + 1) // 2)]
    return [*found, (GROUPS, nodes // 2)] if nodes % 2 == 0 else found


def runs(quick: bool) -> Iterator[Run]:
    """Steps first, which take moments; then the trainings, seeds outermost.

    The CNN's trainings take up to twenty minutes each: it has ten seeds where SEEDED has them.
    """
    if quick:
        yield from (*steps(CELLS[3], (2, 3)), *trainings(CELLS[3], 0, (2,)))
        return
    for cell in CELLS:
        yield from steps(cell, cell.nodes)
    for seed in range(SEEDS):
        for cell in (*CELLS, *SEEDED):
            if seed < cell.seeds:
                yield from trainings(cell, seed, cell.nodes)


def steps(cell: Cell, nodes: tuple[int, ...]) -> Iterator[Run]:
    for n in nodes:
        for method, r in ((MULTICAST, 1), (UNICAST, 1), (RING, 1), *((CODED, r) for r in redundancies(n)), *others(n)):
            settings = {"load": cell.load, "task": cell.task, "network": cell.network, "nodes": n}
            yield Run({**settings, "method": method, "r": r}, partial(step, **settings, method=method, r=r))


def trainings(cell: Cell, seed: int, nodes: tuple[int, ...]) -> Iterator[Run]:
    for n in nodes:
        yield training(cell.training("sgd", n, seed))
        for factor in cell.factors(n):
            yield training(cell.training(ASGD, n, seed, factor))


def training(settings: dict[str, Any]) -> Run:
    return Run(settings, partial(train, settings))


def curve_runs(quick: bool) -> Iterator[Run]:
    """The runs of E1 and E2: those over nodes, and two trainings far beyond the mark on ten nodes."""
    if quick:
        yield from (*steps(CELLS[0], (10,)), *trainings(CELLS[0], 0, (10,)))
        return
    yield from runs(quick)
    yield from (training(beyond(CELLS[3], method)) for method in ("sgd", ASGD))


def beyond(cell: Cell, method: str) -> dict[str, Any]:
    return {**cell.training(method, 10), "mark": 1.0, "steps": LONG}


def step(**settings: Any) -> Any:
    from benchmarks.papers import coded_steps

    return coded_steps.step(**settings)


def train(settings: dict[str, Any]) -> Any:
    from benchmarks.papers import coded_training

    return coded_training.train(coded_training.Training(**settings))


# -- what the runs say -------------------------------------------------------------------------------------------------
def one(results: Results, settings: dict[str, Any]) -> Measured | None:
    return next(iter(where(results, **settings)), None)


def exchange(results: Results, cell: Cell, nodes: int, method: str, r: int) -> Any:
    """Return the figures of a synchronous step, None where it has not run."""
    wanted = {"load": cell.load, "task": cell.task, "network": cell.network, "nodes": nodes, "method": method, "r": r}
    found = one(results, wanted)
    return found and found.figures


def steps_to_mark(results: Results, cell: Cell, nodes: int) -> float | None:
    """Return the synchronous steps to the mark, which are those of one machine on the same batches.

    The mean over the seeds; None where one has not reached the mark.
    """
    found = [one(results, cell.training("sgd", nodes, seed)) for seed in range(cell.seeds)]
    taken = [f.figures["steps"] for f in found if f]
    return sum(taken) / len(taken) if taken and None not in taken else None


def seconds_to_mark(results: Results, cell: Cell, nodes: int, method: str, r: int = 1) -> float | None:
    if method == ASGD:
        times = asynchronous(results, cell, nodes)
        return sum(times) / len(times) if times else None
    taken, told = steps_to_mark(results, cell, nodes), exchange(results, cell, nodes, method, r)
    return taken * told["step_s"] if taken and told else None


def asynchronous(results: Results, cell: Cell, nodes: int) -> list[float]:
    """Return the seconds to the mark by seed, at the fastest of the cell's rates; [] where none reached it.

    The fastest is that on the test rows, which favors ASGD.
    """
    by_rate = []
    for factor in cell.factors(nodes):
        found = [one(results, cell.training(ASGD, nodes, seed, factor)) for seed in range(cell.seeds)]
        times = [f.figures["seconds"] for f in found if f]
        if times and None not in times:
            by_rate.append(times)
    return min(by_rate, key=lambda times: sum(times) / len(times), default=[])


def missed(results: Results, cell: Cell, nodes: int, method: str) -> bool:
    """Return whether a method's training has run and has not reached the mark."""
    if method != ASGD:
        found = one(results, cell.training("sgd", nodes))
        return bool(found) and steps_to_mark(results, cell, nodes) is None
    ran = [one(results, cell.training(ASGD, nodes, factor=factor)) for factor in cell.factors(nodes)]
    return any(ran) and not asynchronous(results, cell, nodes)


def bytes_to_mark(results: Results, cell: Cell, nodes: int, method: str, r: int) -> float | None:
    taken, told = steps_to_mark(results, cell, nodes), exchange(results, cell, nodes, method, r)
    return taken * told["sent_bytes"] if taken and told else None


def fastest(results: Results, cell: Cell, nodes: int, *, paper: bool = True) -> tuple[str, float] | None:
    """Return coded SGD's redundancy and seconds at its best; r = 1 is SSGD. `paper`: the source's placement alone."""
    tried = [(MULTICAST, 1), *((CODED, r) for r in redundancies(nodes)), *(() if paper else others(nodes))]
    found = [(f"{r}", seconds_to_mark(results, cell, nodes, method, r)) for method, r in tried]
    reached = [(r, seconds) for r, seconds in found if seconds is not None]
    return min(reached, key=lambda pair: pair[1], default=None)
