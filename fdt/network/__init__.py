"""A described cluster as frozen values: nodes, links, compute speeds, and the durations of a node's computation.

The simulator and the emulation use the same description. reading.py reads it from YAML, topology.py makes it a graph
with routes, transfers.py moves tensors on a simulated clock, over channels that flows share. docs/cluster.md has the
keys of a cluster's file and complete examples.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fdt.errors import UsageError

STAR, RING, TREE, LAYERED = "star", "ring", "tree", "terminal-edge-cloud"
LINKED = "links"  # the topology of a file that lists its links
TOPOLOGIES = (STAR, RING, TREE, LAYERED)
LAYERS = ("terminal", "edge", "cloud")
EMULATED_CLUSTER_VARIABLE = "FDT_EMULATED_CLUSTER"  # path of the cluster file, in processes that emulate its nodes


@dataclass(frozen=True)
class Speed:
    """A node's speed, relative to 1. `shape`: of the Gamma distribution of step times; None: constant times."""

    mean: float = 1.0
    shape: float | None = None


@dataclass(frozen=True)
class Slowdowns:
    """Random periods in which a node is `factor` times slower.

    Attributes:
        every_s: The mean time between periods, in seconds; exponentially distributed.
        last_s: The mean length of a period, in seconds; exponentially distributed.
        factor: How many times longer a step takes.
    """

    every_s: float
    last_s: float
    factor: float

    @property
    def share(self) -> float:
        """The part of the time in which the node is slow."""
        return self.last_s / (self.every_s + self.last_s)

    @property
    def lengthens(self) -> float:
        """How many times longer many steps in a row take."""
        return (self.every_s + self.last_s) / (self.every_s + self.last_s / self.factor)

    def shortened(self, by: float) -> "Slowdowns":
        """Return periods that are `by` times as long, and as far apart."""
        return replace(self, every_s=self.every_s * by, last_s=self.last_s * by)


@dataclass(frozen=True)
class NetworkLink:
    """A full-duplex link. Each direction has `bandwidth` bytes/s and `latency_s` seconds."""

    bandwidth: float = math.inf
    latency_s: float = 0.0


@dataclass(frozen=True)
class ClusterLink:
    """A link of a cluster that lists its links.

    Attributes:
        a: A node, a group (each node of it has such a link), a switch, or "server".
        b: The other end, as `a`.
        where: Its position in the file, for errors.
        link: Its bandwidth and latency; None: the cluster's.
    """

    a: str
    b: str
    where: str
    link: NetworkLink | None = None


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes.

    Attributes:
        name: The group's name.
        count: How many nodes; None: as many as are left of the number of workers.
        speed: Their speed.
        slowdowns: Their slow periods, if any.
        link: To the node's neighbor in the topology; None: the cluster's.
        uplink: In a star, a second link that all nodes of the group share.
        layer: "terminal", "edge" or "cloud" (terminal-edge-cloud only).
        joins_s: When they join, in simulated seconds.
        leaves_s: When they leave, in simulated seconds.
    """

    name: str
    count: int | None = 1
    speed: Speed = Speed()
    slowdowns: Slowdowns | None = None
    link: NetworkLink | None = None
    uplink: NetworkLink | None = None
    layer: str = "terminal"
    joins_s: float = 0.0
    leaves_s: float = math.inf


@dataclass(frozen=True)
class ClusterNode:
    """One node: number `index` of the cluster."""

    index: int
    name: str
    group: NodeGroup


@dataclass(frozen=True)
class Cluster:
    """A cluster.

    Attributes:
        groups: Its nodes, in groups.
        topology: One of TOPOLOGIES, or LINKED.
        arity: In a tree, the number of a node's children.
        step_s: The seconds of a training step on a node of speed 1.
        link: The link of nodes whose group has none.
        server: The parameter server's link, where there is one.
        multicast: A tensor sent to several nodes at once crosses each link once.
        medium: A channel that all traffic crosses besides its links, such as radio. All directions share its bandwidth.
        links: The links, where the topology is LINKED.
        switches: Names of places that forward and compute nothing (LINKED only).
        nodes: All nodes, in the order of their groups.
    """

    groups: tuple[NodeGroup, ...]
    topology: str = STAR
    arity: int = 2
    step_s: float = 0.1
    link: NetworkLink = NetworkLink()
    server: NetworkLink | None = None
    multicast: bool = False
    medium: NetworkLink | None = None
    links: tuple[ClusterLink, ...] = ()
    switches: tuple[str, ...] = ()
    nodes: tuple[ClusterNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(_numbered(self.groups)))

    @property
    def workers(self) -> tuple[ClusterNode, ...]:
        """The nodes that train under a parameter server: terminals, where there are layers."""
        return tuple(n for n in self.nodes if self.topology != LAYERED or n.group.layer == LAYERS[0])

    def with_workers(self, count: int | None) -> "Cluster":
        """Return this cluster with `count` workers in all (None: as many as it describes).

        Raises:
            UsageError: The cluster describes another number and has no group of workers of open count.
        """
        opens = (g for g in self.groups if g.count is None)
        grows = any(self.topology != LAYERED or g.layer == LAYERS[0] for g in opens)
        rest = max(1, (count or 0) - len(self.workers)) if grows else 1  # an open layer above has no workers
        made = replace(self, groups=tuple(replace(g, count=rest) if g.count is None else g for g in self.groups))
        n = len(made.workers)
        if count not in (None, n):
            fixed = f"{n}, as in the cluster, or left out"
            valid = f"at least {n}, the sum of the counts in the cluster" if grows else fixed
            raise UsageError(f"--workers must be {valid}. Received: {count}")
        return made


def check_always_there(cluster: Cluster) -> None:
    """Raise UsageError where a node joins or leaves."""
    for group in cluster.groups:
        if group.joins_s > 0 or not math.isinf(group.leaves_s):
            raise UsageError(
                f"this command needs nodes that neither join nor leave. Received: {group.name}, which joins or leaves"
            )


def equal_nodes() -> Cluster:
    """Return the default cluster: equal nodes, Gamma(100) step times, links without cost."""
    return Cluster((NodeGroup("worker", None, Speed(1.0, 100.0)),))


def _numbered(groups: tuple[NodeGroup, ...]) -> Iterator[ClusterNode]:
    index = 0
    for group in groups:
        for number in range(group.count or 0):
            yield ClusterNode(index, f"{group.name}-{number}" if group.count != 1 else group.name, group)
            index += 1


class Pace:
    """The computation of one node.

    Args:
        node: The node.
        step_s: The seconds of a step on a node of speed 1.
        seed: Determines the times of steps and the slow periods.
        fit: The number of the `fit`, whose steps have times of their own. Slow periods go on.
    """

    def __init__(self, node: ClusterNode, step_s: float, seed: Sequence[int], fit: int = 0) -> None:
        self._speed, self._slowdowns, self._step_s = node.group.speed, node.group.slowdowns, step_s
        self._steps = np.random.Generator(np.random.PCG64([*seed, node.index, 0, *[fit] * (fit > 0)]))
        self._changes = np.random.Generator(np.random.PCG64([*seed, node.index, 1]))
        share = 0.0 if self._slowdowns is None else self._slowdowns.share
        self._slow = bool(self._changes.random() >= share)  # the first change turns it round
        self._until_s = 0.0

    def seconds(self, now_s: float, steps: float = 1.0, draws: float = 1.0) -> float:
        """Return the seconds that `steps` training steps take from `now_s` on. Calls must be in the order of time.

        `draws`: how many steps on parts of a batch they are; each step or part has a random time of its own.
        """
        work_s = steps * self._step_s / self._speed.mean
        if self._speed.shape is not None and steps > 0:
            shape = self._speed.shape * max(1.0, steps, draws)  # n draws of Gamma(k, 1/k) add up to n Gamma(nk, 1/nk)
            work_s *= float(self._steps.gamma(shape, 1 / shape))
        return work_s if self._slowdowns is None else self._through_slowdowns(now_s, work_s)

    def seconds_of(self, count: int, now_s: float) -> float:
        """Return the seconds that `count` training steps, one after another, take from `now_s` on."""
        total_s = 0.0
        for _ in range(count):
            total_s += self.seconds(now_s + total_s)
        return total_s

    def _through_slowdowns(self, now_s: float, work_s: float) -> float:
        assert self._slowdowns is not None
        at_s = now_s
        while True:
            self._catch_up(at_s)
            factor = self._slowdowns.factor if self._slow else 1.0
            if at_s + work_s * factor <= self._until_s:
                return at_s + work_s * factor - now_s
            work_s -= (self._until_s - at_s) / factor
            at_s = self._until_s

    def _catch_up(self, now_s: float) -> None:
        """Draw changes until the next one is after `now_s`."""
        assert self._slowdowns is not None
        while self._until_s <= now_s:
            self._slow = not self._slow
            mean_s = self._slowdowns.last_s if self._slow else self._slowdowns.every_s
            self._until_s += float(self._changes.exponential(mean_s))


class Pacer:
    """Makes each step of an emulated node last, in real time, at least as long as the cluster file says."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._begin = pace, time.monotonic()

    def hold(self, started: float, steps: float = 1.0) -> None:
        """Wait until `steps` steps that started at `started` (time.monotonic) would end on the node."""
        wanted = self._pace.seconds(started - self._begin, steps)
        time.sleep(max(0.0, started + wanted - time.monotonic()))


def pacer_of(rank: int, seed: int, *, every_node: bool = False) -> Pacer | None:
    """Return the pacer of worker `rank`, or with `every_node` of node `rank`. None without an emulated cluster."""
    file = os.environ.get(EMULATED_CLUSTER_VARIABLE)
    if file is None:
        return None
    from fdt.network.reading import read_cluster  # imports yaml, which only a cluster file needs

    cluster = read_cluster(Path(file)).with_workers(None)
    nodes = cluster.nodes if every_node else cluster.workers
    return Pacer(Pace(nodes[rank], cluster.step_s, (seed,)))
