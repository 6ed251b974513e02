"""Group synchronisation: workers of similar speed work in synchronous rounds, and groups do not wait for each other.

The idea is that of a patent published in 2017 (HUST, grouped parameter servers for clusters of unequal machines), whose
formulas are not available; the formulas here are this project's. t_m is the measured time of worker m per batch, in
seconds:

    warm-up    `warm_up` rounds of all workers together, as in ssgd, in which t_m is measured
    groups     workers sorted by t_m: a worker whose t_m exceeds `ratio` times that of its group's fastest starts the
               next group; or `groups` groups, separated where neighbours differ most
    in a group a round is one batch of each member; their mean by samples is one update, as in ssgd; so each worker's
               share of the data follows its group's speed
    between    w <- w - eta (n_g / n) / max(tau_g, 1) mean_g    n_g of n workers; tau_g updates of other groups
               (linear scaling: Goyal et al. 2017, arXiv:1706.02677; division by staleness: Zhang et al. 2016,
               arXiv:1511.05950)
    drift      if a worker's t_m has changed by more than sqrt(ratio) since the grouping, all workers are grouped
               again, and the held gradients are applied with the round that ends

One group of all workers is ssgd. A worker that joins later forms its own group until its speed is measured.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.algorithms.ssgd import RoundMean
from nfdt.tree import Array, Tree, maximum

NOTE = "group_sync: a round is one batch of every worker of a group; optimizer.iterations and schedules count rounds"
KEEP = 0.9  # decay of the running mean of times, once it covers ten
TINY = 1e-9  # seconds
BY_WORKER = ("counts", "seconds", "grouped", "group_of")  # fields of Shared


@dataclass(frozen=True)
class Held(RoundMean):
    """A round in progress: the workers in `arrived` wait for its end. `tau` is the largest staleness of its pushes."""

    tau: Array = 0.0

    def plus(self, other: "Held") -> "Held":
        """Return both rounds as one."""
        return replace(self.averaged(other), tau=maximum(self.tau, other.tau))


@dataclass(frozen=True)
class Shared:
    """State of the algorithm."""

    members: frozenset[int]
    counts: Mapping[int, int] = field(default_factory=dict)  # by worker: measurements
    seconds: Mapping[int, float] = field(default_factory=dict)  # by worker: t_m
    grouped: Mapping[int, float] = field(default_factory=dict)  # t_m by which groups were made; empty in the warm-up
    group_of: Mapping[int, int] = field(default_factory=dict)
    held: Mapping[int, Held] = field(default_factory=dict)  # by group


def rule(groups: int = 0, ratio: float = 1.5, warm_up: int = 5) -> AsyncAlgorithm:
    """Return group synchronisation.

    Args:
        groups: Number of groups; 0: `ratio` decides.
        ratio: Largest ratio of times within a group, > 1.
        warm_up: Number of rounds in which speeds are measured, >= 1.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(groups >= 0, "group_sync", "groups must be >= 0", groups=groups)
    require(ratio > 1, "group_sync", "ratio must be > 1", ratio=ratio)
    require(warm_up >= 1, "group_sync", "warm_up must be >= 1", warm_up=warm_up)

    def push(now: Shared, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        group = _group(now, push.worker)
        held = now.held.get(group, Held()).plus(Held.of(push, tau=push.tau))
        now = replace(_measured(now, push), held={**now.held, group: held})
        if _members(now, group) - held.arrived:
            return None, now, mine
        if not _regroup(now, ratio, warm_up):
            return _update(now, [group]), _without(now, group), mine
        return *flush(now, params), mine

    def flush(now: Shared, params: Tree) -> tuple[AlgorithmUpdate | None, Shared]:
        """Apply all held gradients as one round, and group the workers again if necessary."""
        update = _update(now, list(now.held))
        now = replace(now, held={})
        if not _regroup(now, ratio, warm_up):
            return update, now
        return update, replace(now, grouped=now.seconds, group_of=groups_by_speed(now.seconds, ratio, groups))

    return AsyncAlgorithm(_init, _pull, push, _leave, _join, flush, waits=True, note=NOTE)


def _init(params: Tree, workers: int) -> tuple[Shared, State]:
    return Shared(frozenset(range(workers))), None


def _pull(now: Shared, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
    held = now.held.get(_group(now, hyper.worker), Held())
    return (None if hyper.worker in held.arrived else params), now, mine


def _leave(now: Shared, mine: State, worker: int) -> Shared:
    """Workers that waited only for this one continue; their mean is applied at the end of their next round."""
    group = _group(now, worker)
    known = {name: {m: v for m, v in getattr(now, name).items() if m != worker} for name in BY_WORKER}
    now = replace(now, members=now.members - {worker}, **known)
    held = now.held.get(group, Held())
    if _members(now, group) - held.arrived:
        return now
    return replace(now, held={**now.held, group: replace(held, arrived=frozenset())})


def _join(now: Shared, worker: int) -> Shared:
    return replace(now, members=now.members | {worker})


def _regroup(now: Shared, ratio: float, warm_up: int) -> bool:
    """Return whether to group again: the warm-up has ended, a worker joined or left, or a speed has drifted."""
    if any(count < warm_up for count in now.counts.values()) or not now.counts:
        return False
    if now.grouped.keys() != now.seconds.keys():
        return True
    return any(not ratio**-0.5 <= now.seconds[m] / t <= ratio**0.5 for m, t in now.grouped.items())


def groups_by_speed(seconds: Mapping[int, float], ratio: float, count: int = 0) -> dict[int, int]:
    """Return the group of each worker; group 0 is the fastest.

    Args:
        seconds: Time per batch in seconds, by worker.
        ratio: Largest ratio of times within a group; unused if `count` is given.
        count: Number of groups; 0: `ratio` decides.
    """
    order = sorted(seconds, key=lambda m: (seconds[m], m))
    steps = [seconds[after] / seconds[before] for before, after in zip(order, order[1:], strict=False)]
    widest = set(sorted(range(len(steps)), key=lambda i: -steps[i])[: count - 1] if count else [])
    groups, number, first = {order[0]: 0}, 0, order[0]
    for place, worker in enumerate(order[1:]):
        if place in widest if count else seconds[worker] > ratio * seconds[first]:
            number, first = number + 1, worker
        groups[worker] = number
    return groups


def _group(now: Shared, worker: int) -> int:
    """Return the worker's group: 0 in the warm-up; later an ungrouped worker has its own group, numbered below 0."""
    return now.group_of.get(worker, -1 - worker) if now.grouped else 0


def _members(now: Shared, group: int) -> frozenset[int]:
    return frozenset(worker for worker in now.members if _group(now, worker) == group)


def _measured(now: Shared, push: Push) -> Shared:
    """Add this push's seconds per batch to the running mean of its worker."""
    taken = max(push.seconds / push.batches, TINY)
    count, before = now.counts.get(push.worker, 0) + 1, now.seconds.get(push.worker, taken)
    mean = before + (taken - before) * max(1.0 / count, 1.0 - KEEP)
    return replace(now, counts={**now.counts, push.worker: count}, seconds={**now.seconds, push.worker: mean})


def _update(now: Shared, groups: list[int]) -> AlgorithmUpdate | None:
    """Return one update from the finished rounds of `groups`: the mean by samples, at the rate of all their workers."""
    total = functools.reduce(Held.plus, (now.held[group] for group in groups), Held())
    if total.mean is None:
        return None
    workers = sum(len(_members(now, group)) for group in groups)
    share_of_all = max(1, workers) / max(1, len(now.members))
    return AlgorithmUpdate(total.mean, lr_scale=share_of_all / maximum(total.tau, 1.0))


def _without(now: Shared, group: int) -> Shared:
    return replace(now, held={other: held for other, held in now.held.items() if other != group})
