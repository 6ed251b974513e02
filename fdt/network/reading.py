"""A reader of cluster.yaml. An error is one line with file, line, key, the received value and the valid values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fdt import network
from fdt.errors import UsageError
from fdt.network import Cluster, ClusterLink, NetworkLink, NodeGroup, Slowdowns, Speed, check_always_there
from fdt.network.topology import SERVER_NAME, shared_name, topology_of

MOST = 100_000  # nodes of a group: each is an object
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_BYTES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_NEEDS = {
    "arity": network.TREE,
    "medium": network.STAR,
    "uplink": network.STAR,
    "layer": network.LAYERED,
    "switches": network.LINKED,
}  # a topology, by key
_RATES = {**{unit: factor / 8 for unit, factor in _BITS.items()}, **_BYTES}  # bytes per second


@dataclass(frozen=True)
class ConfigEntry:
    """A value in the file, and its position. `key`: as in `nodes[1].speed`, "" for the whole file."""

    file: str
    key: str
    node: yaml.Node

    def wrong(self, valid: str, received: object = None) -> UsageError:
        """Return the error for this value. `received`: shown instead of the value itself."""
        return UsageError(f"{self.where}: must be {valid}. Received: {self._shown() if received is None else received}")

    @property
    def where(self) -> str:
        """File, line and key."""
        return f"{self.file}, line {self.node.start_mark.line + 1}" + (f", key {self.key}" if self.key else "")

    def mapping(self, readers: "_Readers", required: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the values by key, each read by its reader. Raises UsageError."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"a mapping with keys of {', '.join(readers)}")
        for i, (name, place, _) in enumerate(pairs := self._pairs()):
            if name not in readers:
                raise place.wrong(f"one of {', '.join(readers)}", name)
            if name in [earlier for earlier, _, _ in pairs[:i]]:
                raise place.wrong("given once", f"{name} twice")
        for missing in (name for name in required if name not in [given for given, _, _ in pairs]):
            raise self.wrong(f"a mapping with the key {missing}", f"a mapping without {missing}")
        return {name: readers[name](value) for name, _, value in pairs}

    def child(self, name: str) -> "ConfigEntry | None":
        """Return the value of one key of a mapping, or None."""
        return next((value for key, _, value in self._pairs() if key == name), None)

    def refuse(self, name: str, valid: str) -> None:
        """Raise UsageError where the mapping has this key, which is valid elsewhere only."""
        if (found := self.child(name)) is not None:
            raise found.wrong(valid)

    def refuse_other(self, topology: str) -> None:
        """Raise UsageError where the mapping has a key of another topology."""
        for name, needed in _NEEDS.items():
            if topology != needed:
                self.refuse(name, f"left out unless topology is {needed}" if name != "switches" else "given with links")

    def items(self) -> list["ConfigEntry"]:
        """Return the entries of a list that is not empty. Raises UsageError."""
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            raise self.wrong("a list of one entry or more, each after a dash")
        return [ConfigEntry(self.file, f"{self.key}[{i}]", node) for i, node in enumerate(self.node.value)]

    def text(self, valid: str) -> str:
        """Return a scalar's text, which is not empty. Raises UsageError."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self.wrong(valid)
        return str(self.node.value)

    def _pairs(self) -> list[tuple[str, "ConfigEntry", "ConfigEntry"]]:
        """Return each key, its position, and its value."""
        below = f"{self.key}." if self.key else ""
        named = [(str(name.value), name, value) for name, value in self.node.value]
        return [
            (n, ConfigEntry(self.file, below + n, key), ConfigEntry(self.file, below + n, value))
            for n, key, value in named
        ]

    def _shown(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return " ".join(self.node.value.split()) or "nothing"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"


_Readers = Mapping[str, Callable[[ConfigEntry], Any]]  # by key


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file. Raises UsageError, one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--cluster cannot be read: {path}: {getattr(error, 'strerror', None) or error}") from None
    return parse_cluster(text, str(path))


def parse_cluster(text: str, file: str = "cluster.yaml") -> Cluster:
    """Parse a cluster description. `file`: its name in errors. Raises UsageError, one line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:  # without a mark: a character that YAML does not permit
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", error)
        raise UsageError(f"{file}, line {mark.line + 1 if mark else 1}: must be YAML. Received: {problem}") from None
    except RecursionError:
        raise UsageError(f"{file}, line 1: must be YAML of a cluster. Received: lists within lists too deep") from None
    if node is None:
        raise UsageError(f"{file}, line 1: must be a mapping with the key nodes. Received: an empty file")
    return _cluster(ConfigEntry(file, "", node))


def read_emulated(file: Path) -> Cluster:
    """Return the cluster of `file`, with all workers that it describes. Raises UsageError if it cannot be emulated."""
    cluster = read_cluster(file).with_workers(None)
    check_always_there(cluster)
    return cluster


def _cluster(entry: ConfigEntry) -> Cluster:
    given = entry.mapping(_CLUSTER, required=("nodes",))
    if "links" in given:
        entry.refuse("topology", "left out where links are given")
        given["topology"] = network.LINKED
    topology = given.get("topology", network.STAR)
    entry.refuse_other(topology)
    nodes: list[ConfigEntry] = given.pop("nodes")
    groups = [_group(node, i, topology) for i, node in enumerate(nodes)]
    _check_names(nodes, groups)
    if sum(g.count is None for g in groups) > 1:
        raise entry.wrong("a file in which at most one group of nodes has no count", "several without count")
    if topology == network.LAYERED:
        _check_layers(entry, groups)
    cluster = Cluster(tuple(groups), **{_FIELDS.get(name, name): value for name, value in given.items()})
    if topology == network.LINKED:
        _check_links(entry, cluster)
    return cluster


def _group(entry: ConfigEntry, index: int, topology: str) -> NodeGroup:
    given = {_FIELDS.get(name, name): value for name, value in entry.mapping(_GROUP).items()}
    entry.refuse_other(topology)
    if topology == network.LINKED:
        entry.refuse("link", "left out where links are given")
    joins_s, leaves_s = given.get("joins_s", 0.0), given.get("leaves_s", math.inf)
    if joins_s >= leaves_s:
        raise entry.wrong("a group that leaves after it joins", f"joins at {joins_s:g} s, leaves at {leaves_s:g} s")
    return NodeGroup(**{"name": f"node{index}" if index else "node", "count": None, **given})


def _check_names(nodes: list[ConfigEntry], groups: list[NodeGroup]) -> None:
    if shared := shared_name(groups, MOST):
        valid = f"a group with names, its own and its nodes', that no other group has, and not {SERVER_NAME}"
        raise nodes[shared[0]].wrong(valid, shared[1])


def _check_layers(entry: ConfigEntry, groups: list[NodeGroup]) -> None:
    found = {g.layer for g in groups}
    for missing in (layer for layer in network.LAYERS if layer not in found):
        raise entry.wrong(f"a file with nodes of every layer ({', '.join(network.LAYERS)})", f"none of {missing}")


def _check_links(entry: ConfigEntry, cluster: Cluster) -> None:
    if any(SERVER_NAME in (link.a, link.b) for link in cluster.links):
        entry.refuse("server", f"left out where a link leads to {SERVER_NAME}")
    lost = topology_of(cluster.with_workers(None)).unreachable()
    if lost and (links := entry.child("links")) is not None:
        raise links.wrong("links by which every node reaches every other", f"no route from {lost[0]} to {lost[1]}")


def _number(entry: ConfigEntry, valid: str, least: float, *, open_end: bool = False) -> float:
    try:
        value = float(entry.text(valid))
    except ValueError:
        raise entry.wrong(valid) from None
    if not math.isfinite(value) or value < least or (open_end and value == least):
        raise entry.wrong(valid)
    return value


_positive = partial(_number, valid="a number more than 0", least=0.0, open_end=True)
_slower = partial(_number, valid="a number more than 1, how many times slower", least=1.0, open_end=True)
_name = partial(ConfigEntry.text, valid="a name")


def _whole(entry: ConfigEntry) -> int:
    valid = f"a whole number, from 1 to {MOST:,}"
    value = _number(entry, valid, 1)
    if value != int(value) or value > MOST:
        raise entry.wrong(valid)
    return int(value)


def _choice(*valid: str) -> Callable[[ConfigEntry], str]:
    def read(entry: ConfigEntry) -> str:
        allowed = f"one of {', '.join(valid)}"
        if (value := entry.text(allowed)) not in valid:
            raise entry.wrong(allowed)
        return value

    return read


def _quantity(entry: ConfigEntry, units: Mapping[str, float], what: str, *, zero: bool) -> float:
    """Read a number and a unit, `100 ms` or `100ms`."""
    valid = f"{what}, in {', '.join(units)}"
    text = entry.text(valid).strip()
    if zero and text == "0":
        return 0.0
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzGMB/ ")
    try:
        value = float(number) * units[text[len(number) :].strip()]
    except (ValueError, KeyError):
        raise entry.wrong(valid) from None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise entry.wrong(valid)
    return value


_time = partial(_quantity, units=_SECONDS, what="a time such as 100 ms", zero=False)
_moment = partial(_quantity, units=_SECONDS, what="a time such as 100 ms, or 0", zero=True)


def _bandwidth(entry: ConfigEntry) -> float:
    if isinstance(entry.node, yaml.ScalarNode) and entry.node.value == "unlimited":
        return math.inf
    return _quantity(entry, _RATES, "unlimited, or a bandwidth such as 1 Gbit/s", zero=False)


def _link(entry: ConfigEntry) -> NetworkLink:
    given = entry.mapping({"bandwidth": _bandwidth, "latency": _moment})
    return NetworkLink(given.get("bandwidth", math.inf), given.get("latency", 0.0))


def _ends(entry: ConfigEntry) -> ClusterLink:
    listed = entry.items()
    if not 2 <= len(listed) <= 3:
        raise entry.wrong("two ends, and the link between them: [a, b, {bandwidth: 1 Gbit/s, latency: 1 ms}]")
    return ClusterLink(_name(listed[0]), _name(listed[1]), entry.where, *map(_link, listed[2:]))


def _speed(entry: ConfigEntry) -> Speed:
    if isinstance(entry.node, yaml.ScalarNode):
        return Speed(_number(entry, "a number more than 0, or a mapping with distribution", 0.0, open_end=True))
    readers: _Readers = {"distribution": _choice("constant", "gamma"), "mean": _positive, "shape": _positive}
    given = entry.mapping(readers, required=("distribution",))
    gamma = given["distribution"] == "gamma"
    if gamma and "shape" not in given:
        raise entry.wrong("a mapping with the key shape, for distribution gamma", "a mapping without shape")
    if not gamma:
        entry.refuse("shape", "left out unless distribution is gamma")
    return Speed(given.get("mean", 1.0), given.get("shape"))


def _slowdowns(entry: ConfigEntry) -> Slowdowns:
    given = entry.mapping({"every": _time, "last": _time, "factor": _slower}, required=("every", "last", "factor"))
    return Slowdowns(given["every"], given["last"], given["factor"])


_FIELDS = {"joins": "joins_s", "leaves": "leaves_s", "step": "step_s"}
_GROUP: _Readers = {
    "name": _name,
    "count": _whole,
    "layer": _choice(*network.LAYERS),
    "speed": _speed,
    "slowdowns": _slowdowns,
    "link": _link,
    "uplink": _link,
    "joins": _moment,
    "leaves": _time,
}
_CLUSTER: _Readers = {
    "topology": _choice(*network.TOPOLOGIES),
    "arity": _whole,
    "step": _time,
    "link": _link,
    "server": _link,
    "multicast": lambda entry: bool(_choice("true", "false")(entry) == "true"),
    "medium": _link,
    "links": lambda entry: tuple(map(_ends, entry.items())),
    "switches": lambda entry: tuple(map(_name, entry.items())),
    "nodes": ConfigEntry.items,
}
