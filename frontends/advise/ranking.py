"""The order of all algorithms on a cluster for a measured script, and how sure it is."""

import functools
import importlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdt.network import Cluster, Slowdowns
from frontends.advise import NoAnswer
from frontends.advise.pushes import PushRun
from frontends.advise.table import OUTSIDE, Batches, Place, Table

PER_WORKER = " --batch per-worker"
EXACT = (("hfdt", "allreduce"), ("hfdt", "coded(placement='cyclic')"))  # one machine's numbers at any number of ranks
SIMULATED = 200  # batches, after which the time of a batch is known
EXACT_SIMULATED = 40  # of EXACT, which have neither rounds nor staleness; a batch of coded is some thousand packets
PERIODS = 40  # slow periods of all nodes together, after which their share of the time is known
LAST_STEPS = 10  # a slow period that lasts more steps of a node is simulated with so many
CLOSE = 1.1  # algorithms whose expected times differ by less are alike


@dataclass(frozen=True)
class ScriptProbe:
    """What was measured of a script.

    Attributes:
        step_s: Seconds of a batch on this machine.
        nbytes: Bytes of the gradients.
        slot_nbytes: Bytes of the optimizer's slots.
        batches: Batches of an epoch; 0: unknown.
        fixed: The part of `step_s` that does not shrink with the rows of a batch, in 0..1.
    """

    step_s: float
    nbytes: int
    slot_nbytes: int = 0
    batches: int = 0
    fixed: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """An algorithm on the cluster.

    Attributes:
        engine: "hfdt" or "nfdt".
        algorithm: As after --algorithm, with PER_WORKER where that is given too.
        batch_s: Simulated seconds of a batch.
        batches: Batches to the same accuracy, over those of one machine.
        time: Expected time over that of one machine, which is this one.
        least: The least time by the rows of the table.
        most: The most.
    """

    engine: str
    algorithm: str
    batch_s: float
    batches: float
    time: float
    least: float
    most: float

    def command(self, script: Sequence[str], args: Sequence[str], workers: int) -> str:
        """Return the command that trains `script`, which is a path, or -m and a module, with arguments of its own."""
        name = self.algorithm.removesuffix(PER_WORKER)
        quoted = f'"{name}"' if "(" in name else name
        batch = PER_WORKER if self.algorithm.endswith(PER_WORKER) else ""
        # these count as the engine's behind the script, too
        ours = any(arg.startswith(("-np", "--async", "--sync")) or arg == "--" for arg in args)
        typed = shlex.join([*script, *["--"] * ours, *args])
        return f"{self.engine} run --algorithm {quoted}{batch} -np {workers} {typed}"


@dataclass(frozen=True)
class Ranking:
    """The candidates, the fastest first; why others were left out; how sure the order is, and why."""

    candidates: list[Candidate]
    left_out: dict[str, str]
    sure: str
    reasons: list[str]

    @property
    def faster(self) -> bool:
        """Whether an algorithm is expected to be faster than one machine."""
        return self.candidates[0].time < 1

    @property
    def expected_time(self) -> dict[str, float]:
        """The time of what is advised over one machine's: 1 where that is one machine."""
        first = self.candidates[0]
        times = (first.time, first.least, first.most) if self.faster else (1.0, 1.0, 1.0)
        return dict(zip(("expected", "least", "most"), times, strict=True))


def rank(table: Table, cluster: Cluster, probe: ScriptProbe, refused: Mapping[str, str] | None = None) -> Ranking:
    """Return the order of the algorithms.

    Args:
        table: The kept results.
        cluster: Nodes and links. A batch on a node of speed 1 takes `probe.step_s`.
        probe: What was measured of the script.
        refused: Algorithms of either engine that cannot train the script, and why.

    Raises:
        NoAnswer: The table has no cluster like this one, or no algorithm reaches the accuracy on those that it has.
    """
    place, cluster = Place.of(cluster), replace(cluster, step_s=probe.step_s)
    check_inside(table, place)
    left_out = dict(refused or {})
    found = []
    for engine, algorithm in dict.fromkeys([*EXACT, *table.algorithms]):
        if f"{engine} {algorithm}" in left_out:
            continue
        exact = (engine, algorithm) in EXACT
        batches = Batches(1.0, 1.0, 1.0) if exact else table.batches(engine, algorithm, place)
        if batches is None:
            left_out[f"{engine} {algorithm}"] = "did not reach the accuracy on the nearest clusters of the table"
            continue
        seconds = batch_s(cluster, engine, algorithm, probe)
        times = [seconds / probe.step_s * b for b in (batches.expected, batches.least, batches.most)]
        found.append(Candidate(engine, algorithm, seconds, batches.expected, *times))
    if not found:
        raise NoAnswer("no algorithm of the table reaches one machine's accuracy on clusters like this one")
    found.sort(key=lambda candidate: candidate.time)
    return Ranking(found, left_out, *sureness(table, place, found))


def check_inside(table: Table, place: Place) -> None:
    """Raise NoAnswer where no cluster of the table is near."""
    if table.distance(place) > OUTSIDE:
        raise NoAnswer(
            f"the cluster is outside of the table; the nearest one is {table.nearest(place)}. Received: "
            f"{2**place.workers:.0f} workers, the fastest {2**place.unequal:.2g} times as fast as the slowest, slow "
            f"periods that lengthen a training {2**place.fluctuating:.2g} times; use nfdt simulate --compare"
        )


@functools.cache  # the time of allreduce is needed for coded, too
def batch_s(cluster: Cluster, engine: str, algorithm: str, probe: ScriptProbe) -> float:
    """Return the simulated seconds of a batch of the script in a long training."""
    exact = (engine, algorithm) in EXACT
    slow = [each for node in cluster.workers if (each := node.group.slowdowns) is not None]
    if slow and exact and algorithm != EXACT[0][1]:  # a step of coded waits for all ranks, too
        calm = _with_slowdowns(cluster, lambda given: None)
        longer = batch_s(cluster, *EXACT[0], probe) / batch_s(calm, *EXACT[0], probe)
        return batch_s(calm, engine, algorithm, probe) * longer
    count = EXACT_SIMULATED if exact else SIMULATED
    seconds = _batch_s(cluster, engine, algorithm, probe, count)
    if not slow:
        return seconds
    # a long period costs as much as several short ones, while each holds some steps
    shorter = min(1.0, LAST_STEPS * cluster.step_s / max(each.last_s for each in slow))
    if _round_is_epoch(engine, algorithm):
        shorter = 1.0
    cluster = _with_slowdowns(cluster, lambda given: given.shortened(shorter))
    horizon_s = shorter * math.ceil(PERIODS / len(slow)) * max(each.every_s + each.last_s for each in slow)
    return _batch_s(cluster, engine, algorithm, probe, max(count, math.ceil(horizon_s / seconds)))


def _with_slowdowns(cluster: Cluster, change: Callable[[Slowdowns], Slowdowns | None]) -> Cluster:
    groups = (replace(g, slowdowns=None if g.slowdowns is None else change(g.slowdowns)) for g in cluster.groups)
    return replace(cluster, groups=tuple(groups))


def _round_is_epoch(engine: str, algorithm: str) -> bool:
    timing: Any = importlib.import_module("hfdt.cost.on_cluster")
    return engine == "hfdt" and bool(timing.round_is_epoch(algorithm.removesuffix(PER_WORKER)))


def _batch_s(cluster: Cluster, engine: str, algorithm: str, probe: ScriptProbe, count: int) -> float:
    """Return the mean seconds of a batch in `count` batches from the start on."""
    timing: Any = importlib.import_module("hfdt.cost.on_cluster")
    batches = probe.batches or count
    if not _round_is_epoch(engine, algorithm):
        batches = min(batches, count)
    epochs = math.ceil(count / batches)
    if engine == "nfdt":
        run = PushRun(_with_micro_steps(cluster, algorithm, probe), algorithm, batches, probe.nbytes, 0)
        return run.seconds(epochs) / (batches * epochs)
    name, per_worker = algorithm.removesuffix(PER_WORKER), algorithm.endswith(PER_WORKER)
    load = timing.Load(batches, epochs, probe.nbytes, probe.slot_nbytes, per_worker, 0, probe.fixed)
    return float(timing.exchanges(cluster, name, load)[-1].seconds) / (batches * epochs)


def _with_micro_steps(cluster: Cluster, algorithm: str, probe: ScriptProbe) -> Cluster:
    """Return the cluster with the time of a batch in parts: each takes the whole of what its rows do not shrink."""
    registry: Any = importlib.import_module("nfdt.algorithms")
    return replace(cluster, step_s=cluster.step_s * (1 + (registry.make(algorithm).micro_steps - 1) * probe.fixed))


def sureness(table: Table, place: Place, found: list[Candidate]) -> tuple[str, list[str]]:
    """Return "high", "medium" or "low", and why."""
    first, doubts = found[0], []
    exact = [c for c in found if (c.engine, c.algorithm) in EXACT]
    rivals = [c for c in found[1:] if c.least < first.most or c.time < CLOSE * first.time]
    rivals = [c for c in rivals if first not in exact or c not in exact]  # they give the same numbers
    if rivals:
        also = ", ".join(f"{c.engine} {c.algorithm}" for c in rivals[:3])
        doubts.append(f"may be as fast: {also}" + (" and others" if len(rivals) > 3 else ""))
    if (distance := table.distance(place)) > OUTSIDE / 2:
        doubts.append(
            f"the nearest cluster of the table, {table.nearest(place)}, differs by {distance:.1f} factors of two"
        )
    if missing := sorted(_known() - {algorithm.partition("(")[0].split()[0] for _, algorithm in table.algorithms}):
        doubts.append(f"{len(missing)} algorithms are not in the table: {', '.join(missing[:3])}, ...")
    if len(table.tasks) < 2 and (first.engine, first.algorithm) not in EXACT:
        doubts.append(f"the table has one task only: {', '.join(table.tasks)}")
    return ("high", "medium", "low")[min(len(doubts), 2)], doubts


def _known() -> set[str]:
    """Return the names of all algorithms."""
    registries: list[Any] = [importlib.import_module(f"{engine}.algorithms") for engine in ("hfdt", "nfdt")]
    return {name for registry in registries for name in registry.names()}
