"""What a cluster description says, as frozen values. docs/cluster.md has the file's keys and complete examples."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fdt.errors import UsageError

STAR, RING, TREE, LAYERED = "star", "ring", "tree", "terminal-edge-cloud"
TOPOLOGIES = (STAR, RING, TREE, LAYERED)
LAYERS = ("terminal", "edge", "cloud")


@dataclass(frozen=True)
class Speed:
    """Steps of a node, against one of speed 1. `shape`: of the Gamma distribution of a step's time; None: constant."""

    mean: float = 1.0
    shape: float | None = None


@dataclass(frozen=True)
class Slowdowns:
    """A node is `factor` times slower for `last_s`, begun every `every_s`: both are means of exponential times."""

    every_s: float
    last_s: float
    factor: float


@dataclass(frozen=True)
class NetworkLink:
    """Full duplex: each direction has `bandwidth` bytes a second."""

    bandwidth: float = math.inf
    latency_s: float = 0.0


@dataclass(frozen=True)
class NodeGroup:
    """`count` equal nodes; None: as many as are left of the number asked for.

    link: to the node's neighbour in the topology; None: the cluster's.  uplink (star): a second one that all nodes of
    the group share.  layer: terminal-edge-cloud only.
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
    """step_s: a training step on a node of speed 1.  server: the parameter server's link, where there is one.

    multicast: a tensor sent to several nodes at once crosses each link once.  medium: what all that travels crosses
    besides, both ways (a hub, the air); its bandwidth is that of all directions together.
    """

    groups: tuple[NodeGroup, ...]
    topology: str = STAR
    arity: int = 2
    step_s: float = 0.1
    link: NetworkLink = NetworkLink()
    server: NetworkLink | None = None
    multicast: bool = False
    medium: NetworkLink | None = None
    nodes: tuple[ClusterNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(_numbered(self.groups)))

    @property
    def workers(self) -> tuple[ClusterNode, ...]:
        """The nodes that train under a parameter server: terminals, where there are layers."""
        return tuple(n for n in self.nodes if self.topology != LAYERED or n.group.layer == LAYERS[0])

    def with_workers(self, count: int | None) -> "Cluster":
        """This cluster with `count` workers in all (None: as many as it says).

        Raises UsageError unless it says so itself, or has a group of no given count.
        """
        open_groups = [g for g in self.groups if g.count is None]
        if not open_groups:
            if count not in (None, len(self.workers)):
                raise UsageError(
                    f"--workers must be left out, or be what the cluster says: {len(self.workers)}. Received: {count}"
                )
            return self
        rest = max(1, (count or 0) - len(self.workers))
        filled = tuple(replace(g, count=rest) if g.count is None else g for g in self.groups)
        made = replace(self, groups=filled)
        if count not in (None, len(made.workers)):
            raise UsageError(
                f"--workers must be {len(made.workers)} or more with this cluster, whose groups have names and counts. "
                f"Received: {count}"
            )
        return made


def equal_nodes() -> Cluster:
    """What is simulated when nothing is described: equal nodes, Gamma(100) step times, links that cost nothing."""
    return Cluster((NodeGroup("worker", None, Speed(1.0, 100.0)),))


def _numbered(groups: tuple[NodeGroup, ...]) -> Iterator[ClusterNode]:
    index = 0
    for group in groups:
        for number in range(group.count or 0):
            yield ClusterNode(index, f"{group.name}-{number}" if group.count != 1 else group.name, group)
            index += 1
