"""Group synchronisation: workers of similar speed work in synchronous rounds, and groups do not wait for each other.

The idea is that of a patent published in 2017 (HUST, grouped parameter servers for clusters of unequal machines), whose
formulas are not available; the formulas here are this project's. t_m is the measured time of worker m per batch, in
seconds:

    warm-up    `warm_up` rounds of all workers together, as in ssgd, in which t_m is measured
    groups     workers sorted by t_m: a worker whose t_m exceeds `ratio` times that of its group's fastest starts the
               next group; or `groups` groups, separated where neighbours differ most
    in a group a round is one batch of each member; their mean by samples is one update, as in ssgd; so each worker's
               share of the data follows its group's speed
    between    v_g <- mu v_g + mean_g;  w <- w - eta (n_g / n) v_g       n_g of n workers
               sent: w - mu p sum_g (n_g / n) v_g      p: measured size of a step by unit of direction, as in ddc_asgd
               (linear scaling: Goyal et al. 2017, arXiv:1706.02677; momenta and look-ahead: Hakimi et al. 2019,
               arXiv:1907.11612, with groups in place of workers)
    drift      if a worker's t_m has changed by more than sqrt(ratio) since the grouping, all workers are grouped
               again, and the held gradients are applied with the round that ends

The captured optimizer's momentum over the updates of several groups makes stale gradients of one group unstable. With
momentum="captured" it stays, and a group's rate is divided by its staleness: eta (n_g / n) / max(tau_g, 1), with tau_g
updates of other groups (Zhang et al. 2016, arXiv:1511.05950).

One group of all workers is ssgd; a look-ahead is for two and more. A worker that joins later forms its own group until
its speed is measured.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require, with_member
from nfdt.algorithms.ssgd import RoundMean
from nfdt.tree import Array, Tree, look_ahead, maximum, running_square, with_momentum, zeros, zip_map

NOTE = "group_sync: a round is one batch of every worker of a group; optimizer.iterations and schedules count rounds"
KEEP = 0.9  # decay of the running mean of times, once it covers ten
KEEP_SQUARE = 0.99  # of running squares
TINY = 1e-9  # seconds
TINY_SQUARE = 1e-30
BY_WORKER = ("counts", "seconds", "grouped", "group_of")  # fields of Shared


@dataclass(frozen=True)
class Held(RoundMean):
    """A round in progress: the workers in `arrived` wait for its end. `tau` is the largest staleness of its pushes."""

    tau: Array = 0.0

    def plus(self, other: "Held") -> "Held":
        """Return both rounds as one."""
        return replace(self.averaged(other), tau=maximum(self.tau, other.tau))


@dataclass(frozen=True)
class Momenta:
    """State of momentum="algorithm"; arrays have the shapes of the trainable variables."""

    direction: list[Array]  # running square of the directions applied
    step: list[Array]  # running square of the resulting change of the weights
    v: Mapping[int, list[Array]] = field(default_factory=dict)  # by group
    mu: Array = 0.0  # the captured optimizer's, at the last push
    stepped: bool = False  # whether `step` lacks the last update


@dataclass(frozen=True)
class Shared:
    """State of the algorithm."""

    members: frozenset[int]
    counts: Mapping[int, int] = field(default_factory=dict)  # by worker: measurements
    seconds: Mapping[int, float] = field(default_factory=dict)  # by worker: t_m
    grouped: Mapping[int, float] = field(default_factory=dict)  # t_m by which groups were made; empty in the warm-up
    group_of: Mapping[int, int] = field(default_factory=dict)
    held: Mapping[int, Held] = field(default_factory=dict)  # by group
    momenta: Momenta | None = None  # None: the captured optimizer's momentum


def rule(
    groups: int = 0, ratio: float = 1.5, warm_up: int = 5, momentum: str = "algorithm", rate: str = "own"
) -> AsyncAlgorithm:
    """Return group synchronisation.

    Args:
        groups: Number of groups; 0: `ratio` decides.
        ratio: Largest ratio of times within a group, > 1.
        warm_up: Number of rounds in which speeds are measured, >= 1.
        momentum: "algorithm": one momentum per group. "captured": the optimizer's, with rates divided by staleness.
        rate: "own": a group's rate follows its number of workers. "equal": every group has the rate eta / groups.

    Raises:
        ValueError: If a parameter is out of range.
    """
    require(groups >= 0, "group_sync", "groups must be >= 0", groups=groups)
    require(ratio > 1, "group_sync", "ratio must be > 1", ratio=ratio)
    require(warm_up >= 1, "group_sync", "warm_up must be >= 1", warm_up=warm_up)
    known = momentum in ("algorithm", "captured")
    require(known, "group_sync", "momentum must be algorithm or captured", momentum=momentum)
    require(rate in ("own", "equal"), "group_sync", "rate must be own or equal", rate=rate)

    run = _GroupSync(groups, ratio, warm_up, momentum, rate)
    hooks = (run.init, run.pull, run.push, _leave, with_member, run.flush)
    return AsyncAlgorithm(*hooks, waits=True, own_momentum=lambda now: now.momenta is not None, note=NOTE)


class _GroupSync(NamedTuple):
    """The algorithm's functions that depend on its parameters (`rule`)."""

    groups: int
    ratio: float
    warm_up: int
    momentum: str
    rate: str

    def init(self, params: Tree, workers: int) -> tuple[Shared, State]:
        own = Momenta(zeros(params), zeros(params)) if self.momentum == "algorithm" and workers > 1 else None
        return Shared(frozenset(range(workers)), momenta=own), None

    def push(self, now: Shared, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, Shared, State]:
        group = _group(now, push.worker)
        held = now.held.get(group, Held()).plus(Held.of(push, tau=push.tau))
        momenta = None if now.momenta is None else _sized(now.momenta, params, push)
        now = replace(_measured(now, push), held={**now.held, group: held}, momenta=momenta)
        if _members(now, group) - held.arrived:
            return None, now, mine
        return *self.end_rounds(now, list(now.held) if self.regroups(now) else [group]), mine

    def end_rounds(self, now: Shared, ended: list[int]) -> tuple[AlgorithmUpdate | None, Shared]:
        """Apply the rounds of the groups `ended` as one, and group the workers again if necessary."""
        shares = {group: _share(now, group, self.rate) for group in ended}
        update, now = _with_momenta(now, shares) if now.momenta else (_with_staleness(now, shares), now)
        now = replace(now, held={group: held for group, held in now.held.items() if group not in ended})
        if now.held or not self.regroups(now):
            return update, now
        return update, _grouped(now, groups_by_speed(now.seconds, self.ratio, self.groups), self.rate)

    def flush(self, now: Shared, params: Tree) -> tuple[AlgorithmUpdate | None, Shared]:
        return self.end_rounds(now, list(now.held))

    def pull(self, now: Shared, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        if hyper.worker in now.held.get(_group(now, hyper.worker), Held()).arrived:
            return None, now, mine
        return (_ahead(now, now.momenta, params, hyper.mu, self.rate) if now.momenta else params), now, mine

    def regroups(self, now: Shared) -> bool:
        """Return whether to group again: the warm-up has ended, a worker joined or left, or a speed has drifted."""
        if any(count < self.warm_up for count in now.counts.values()) or not now.counts:
            return False
        if now.grouped.keys() != now.seconds.keys():
            return True
        return any(not self.ratio**-0.5 <= now.seconds[m] / t <= self.ratio**0.5 for m, t in now.grouped.items())


def _leave(now: Shared, mine: State, worker: int) -> Shared:
    """Workers that waited only for this one continue; their mean is applied at the end of their next round."""
    group = _group(now, worker)
    known: dict[str, Any] = {n: {m: v for m, v in getattr(now, n).items() if m != worker} for n in BY_WORKER}
    now = replace(now, members=now.members - {worker}, **known)
    held = now.held.get(group, Held())
    if _members(now, group) - held.arrived:
        return now
    return replace(now, held={**now.held, group: replace(held, arrived=frozenset())})


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


# -- updates: `shares` has the shares of the rate, by group -----------------------------------------------------------


def _share(now: Shared, group: int, rate: str) -> float:
    """Return a group's share of the rate."""
    if rate == "equal":
        return 1 / max(1, len(set(now.group_of.values())))
    return max(1, len(_members(now, group))) / max(1, len(now.members))


def _with_staleness(now: Shared, shares: Mapping[int, float]) -> AlgorithmUpdate | None:
    """Return one update from finished rounds: the mean by samples, at the rate of all their groups."""
    total = functools.reduce(Held.plus, (now.held[group] for group in shares), Held())
    if total.mean is None:
        return None
    return AlgorithmUpdate(total.mean, lr_scale=sum(shares.values()) / maximum(total.tau, 1.0))


def _with_momenta(now: Shared, shares: Mapping[int, float]) -> tuple[AlgorithmUpdate | None, Shared]:
    """Return one update from finished rounds, along the momenta of their groups."""
    own = now.momenta
    means = {group: mean for group in shares if (mean := now.held[group].mean) is not None}
    shares = {group: shares[group] for group in means}
    if own is None or not shares:
        return None, now
    new = {g: with_momentum(own.v[g], means[g], own.mu) if g in own.v else means[g] for g in shares}
    rate = sum(shares.values())
    parts = {group: share / rate for group, share in shares.items()}
    along, fresh = _sum(parts, new), _sum(parts, means)
    direction = running_square(own.direction, [rate * a for a in along], KEEP_SQUARE)
    update = AlgorithmUpdate(along, lr_scale=rate, momentum="algorithm", fresh=fresh)
    return update, replace(now, momenta=replace(own, direction=direction, v={**own.v, **new}, stepped=True))


def _sized(own: Momenta, params: Tree, push: Push) -> Momenta:
    """Read the momentum, and measure the last update's step at the first push after it: a flush can do neither."""
    if not own.stepped:
        return replace(own, mu=push.mu)
    step = running_square(own.step, zip_map(lambda w, before: w - before, params, push.before), KEEP_SQUARE)
    return replace(own, step=step, mu=push.mu, stepped=False)


def _ahead(now: Shared, own: Momenta, params: Tree, mu: Array, rate: str) -> Tree:
    """Return the weights after the steps of all groups' momenta, or `params` where one group has no other."""
    shares = {group: _share(now, group, rate) for group in own.v if _members(now, group)}
    if len(shares) < 2:
        return params
    total = _sum(shares, own.v)
    scale = zip_map(lambda step, v: mu * (step / (v + TINY_SQUARE)) ** 0.5, own.step, own.direction)
    return look_ahead(params, total, scale)


def _grouped(now: Shared, group_of: Mapping[int, int], rate: str) -> Shared:
    """Return the state with new groups. Each begins with the momentum of all, so that their sum stays."""
    own = now.momenta
    if own is not None and own.v:
        all_v = _sum({group: _share(now, group, rate) for group in own.v}, own.v)
        own = replace(own, v=dict.fromkeys(group_of.values(), all_v))
    return replace(now, grouped=now.seconds, group_of=group_of, momenta=own)


def _sum(weights: Mapping[int, float], of: Mapping[int, Any]) -> list[Array]:
    """Return the sum of lists of arrays with these weights. A list with weight 1 alone stays bit-identical."""
    (first, weight), *others = weights.items()
    found: list[Array] = of[first] if weight == 1 and not others else [weight * a for a in of[first]]
    for group, weight in others:
        found = zip_map(functools.partial(_plus, weight), found, of[group])
    return found


def _plus(weight: float, total: Array, array: Array) -> Array:
    return total + weight * array
