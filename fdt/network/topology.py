"""A cluster as a graph: directed channels, and the route from one node to another.

    star                  node - its link - [the group's uplink] - center
    ring                  node i - its link - node i+1, the last - node 0
    tree                  node i - its link - node (i-1) // arity, its parent; node 0 is the root
    terminal-edge-cloud   terminal - its link - its edge - its link - its cloud - its link - center;
                          terminals are assigned to edges, and edges to clouds, in equal consecutive groups
    links                 as the file lists them: between nodes, switches and the parameter server

The cluster's `server` link connects the parameter server to the center, or in a ring and a tree to node 0; there, too,
where no listed link leads to the server. A link is two channels, one for each direction. Every route also crosses the
cluster's medium, where there is one; a multicast crosses it once. The route from a to b is the shortest, found breadth
first in the order in which links were made, so it is the same in every run. Among listed links it is the one of least
latency, and of those the one of fewest links. The route back has the same links.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fdt.errors import UsageError
from fdt.network import LAYERED, LAYERS, LINKED, RING, STAR, Cluster, ClusterNode, NetworkLink, NodeGroup

SERVER = -1  # the parameter server's number in the graph; nodes have their index
SERVER_NAME = "server"
MOST_LINKS = 1_000_000  # of a list: each is an object
_CENTER = -2
_GROUPS = -3  # and below: the end of a group's uplink at its nodes; a switch


@dataclass(frozen=True)
class Route:
    """Channels in order, and the latency of the whole route in seconds."""

    channels: tuple[int, ...] = ()
    latency_s: float = 0.0


@dataclass
class Topology:
    """The graph of a cluster.

    Attributes:
        channels: For each channel, its link.
        names: For each channel, its name for users.
        ends: For each link k, the nodes that its channels 2k and 2k+1 connect.
        above: For each node, its parent, or its node of the next layer.
        medium: The channel that every route between two places also crosses, if any.
        places: By number, the names of nodes, switches and server, where links are listed.
    """

    channels: list[NetworkLink] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    above: dict[int, int] = field(default_factory=dict)
    medium: Route = Route()
    places: dict[int, str] = field(default_factory=dict)
    _out: dict[int, dict[int, int]] = field(default_factory=dict)  # for each node, the channel to each neighbor
    _routes: dict[tuple[int, int], Route] = field(default_factory=dict)

    def add_medium(self, link: NetworkLink) -> None:
        """Add the channel that every route also crosses."""
        self.medium = Route((len(self.channels),), link.latency_s)
        self.channels.append(link)
        self.names.append("medium")

    def join(self, a: int, b: int, link: NetworkLink, name: str) -> None:
        """Add a link between `a`, after which it is named, and `b`."""
        self.ends.append((a, b))
        for one, other, way in ((a, b, "up"), (b, a, "down")):
            self._out.setdefault(one, {}).setdefault(other, len(self.channels))
            self.channels.append(link)
            self.names.append(f"{name} {way}")

    def linked(self, place: int) -> bool:
        """Return whether a link leads to `place`."""
        return place in self._out

    def route(self, a: int, b: int) -> Route:
        """Return the route from `a` to `b`. A place reaches itself without a channel, and without the medium."""
        if a == b:
            return Route()
        if (a, b) not in self._routes:
            channels = (self._least_latency if self.places else self._search)(a, b)
            back = tuple(channel ^ 1 for channel in reversed(channels))  # a link's two channels are numbered 2k, 2k+1
            latency_s = sum(self.channels[channel].latency_s for channel in channels)
            self._routes[a, b], self._routes[b, a] = (
                Route(way + self.medium.channels, latency_s + self.medium.latency_s) for way in (channels, back)
            )
        return self._routes[a, b]

    def multicast(self, a: int, to: Sequence[int]) -> Route:
        """Return the union of the routes, each channel counted once, with the largest latency."""
        routes = [self.route(a, b) for b in to]
        channels = dict.fromkeys(channel for route in routes for channel in route.channels)
        return Route(tuple(channels), max(route.latency_s for route in routes))

    def unreachable(self) -> tuple[str, str] | None:
        """Return the names of two places without a route between them, or None."""
        first = next(iter(self.places))
        reached, front = {first}, [first]
        while front:
            near = self._out.get(front.pop(), {}).keys() - reached
            reached |= near
            front += near
        return next(((self.places[first], name) for at, name in self.places.items() if at not in reached), None)

    def _least_latency(self, a: int, b: int) -> tuple[int, ...]:
        """Dijkstra's algorithm by latency, then by the number of links, then in the order in which links were made."""
        order, seen = itertools.count(), set()
        front: list[tuple[float, int, int, int, tuple[int, ...]]] = [(0.0, 0, next(order), a, ())]
        while True:
            latency_s, links, _, at, channels = heapq.heappop(front)
            if at == b:
                return channels
            if at in seen:
                continue
            seen.add(at)
            for near, channel in self._out[at].items():
                if near == b or len(self._out[near]) > 1:  # a route does not pass through the end of a single link
                    farther_s = round(latency_s + self.channels[channel].latency_s, 12)  # a tie is one, however summed
                    heapq.heappush(front, (farther_s, links + 1, next(order), near, (*channels, channel)))

    def _search(self, a: int, b: int) -> tuple[int, ...]:
        came: dict[int, tuple[int, int] | None] = {a: None}
        front = deque([a])
        while b not in came:
            place = front.popleft()
            near = self._out[place]
            near = {b: near[b]} if b in near else near  # a star's center has thousands of neighbors
            for neighbor, channel in near.items():
                if neighbor not in came:
                    came[neighbor] = place, channel
                    front.append(neighbor)
        channels = []
        while (step := came[b]) is not None:
            b, channel = step
            channels.append(channel)
        return tuple(reversed(channels))


def shared_name(groups: Sequence[NodeGroup], most: int) -> tuple[int, str] | None:
    """Return a name that would name two nodes or groups, or a node and the server, and the number of its second group.

    A group without a count may have 1 to `most` nodes.
    """
    taken = {SERVER_NAME}
    for number, group in enumerate(groups):
        several = range(group.count or most) if group.count != 1 else ()
        names = {group.name, *(f"{group.name}-{node}" for node in several)}
        if shared := sorted(names & taken):
            return number, shared[0]
        taken |= names
    return None


def topology_of(cluster: Cluster) -> Topology:
    """Return the graph of all nodes of `cluster`. Raises UsageError for a listed link that cannot be."""
    made = Topology()
    {STAR: _star, RING: _ring, LAYERED: _layers, LINKED: _linked}.get(cluster.topology, _tree)(cluster, made)
    at = _CENTER if cluster.topology in (STAR, LAYERED) else 0
    if not made.linked(SERVER):
        made.join(SERVER, at, cluster.server or cluster.link, SERVER_NAME)
    if cluster.medium is not None:
        made.add_medium(cluster.medium)
    return made


def _star(cluster: Cluster, made: Topology) -> None:
    for number, group in enumerate(cluster.groups):
        if group.uplink is not None:
            made.join(_GROUPS - number, _CENTER, group.uplink, f"{group.name} uplink")
    for node in cluster.nodes:
        at = _CENTER if node.group.uplink is None else _GROUPS - cluster.groups.index(node.group)
        _join(cluster, made, node, at)


def _ring(cluster: Cluster, made: Topology) -> None:
    count = len(cluster.nodes)
    for node in cluster.nodes[: count if count > 2 else count - 1]:
        _join(cluster, made, node, (node.index + 1) % count)


def _tree(cluster: Cluster, made: Topology) -> None:
    for node in cluster.nodes[1:]:
        made.above[node.index] = (node.index - 1) // cluster.arity
        _join(cluster, made, node, made.above[node.index])


def _layers(cluster: Cluster, made: Topology) -> None:
    terminals, edges, clouds = ([n for n in cluster.nodes if n.group.layer == layer] for layer in LAYERS)
    for below, above in ((terminals, edges), (edges, clouds)):
        for number, node in enumerate(below):
            made.above[node.index] = above[number * len(above) // len(below)].index
            _join(cluster, made, node, made.above[node.index])
    for node in clouds:
        _join(cluster, made, node, _CENTER)


def _linked(cluster: Cluster, made: Topology) -> None:
    made.places = {node.index: node.name for node in cluster.nodes} | {SERVER: SERVER_NAME}
    made.places |= {_GROUPS - number: name for number, name in enumerate(cluster.switches)}
    groups = {group.name: [n.index for n in cluster.nodes if n.group.name == group.name] for group in cluster.groups}
    named = {name: [at] for at, name in made.places.items()} | groups
    several = [name for name, nodes in groups.items() if len(nodes) > 1]
    for name, times in Counter([*made.places.values(), *several]).items():
        if times > 1:
            raise UsageError(f"{cluster.links[0].where}: must be between names given once. Received: {name} twice")
    known = ", ".join([*groups, *cluster.switches, SERVER_NAME])
    joined: set[frozenset[int]] = set()
    for listed in cluster.links:
        for name in (listed.a, listed.b):
            if name not in named:
                raise UsageError(f"{listed.where}: must be one of {known}, or a node of a group. Received: {name}")
        if len(made.ends) + len(named[listed.a]) * len(named[listed.b]) > MOST_LINKS:
            raise UsageError(f"{listed.where}: must be one of {MOST_LINKS:,} links at most. Received: more")
        for a, b in itertools.product(named[listed.a], named[listed.b]):
            shown = f"{made.places[a]} and {made.places[b]}"
            if a == b:
                raise UsageError(f"{listed.where}: must be between two places. Received: {shown}")
            if frozenset((a, b)) in joined:
                raise UsageError(f"{listed.where}: must be the only link of its ends. Received: {shown} again")
            joined.add(frozenset((a, b)))
            made.join(a, b, listed.link or cluster.link, f"{made.places[a]}--{made.places[b]}")


def _join(cluster: Cluster, made: Topology, node: ClusterNode, at: int) -> None:
    made.join(node.index, at, node.group.link or cluster.link, node.name)
