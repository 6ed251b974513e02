"""A reader of cluster.yaml. An error is one line with file, line, key, the received value and the valid values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fdt.errors import UsageError
from fdt.network import (
    LAYERED,
    LAYERS,
    STAR,
    TOPOLOGIES,
    TREE,
    Cluster,
    NetworkLink,
    NodeGroup,
    Slowdowns,
    Speed,
)

MOST = 100_000  # nodes of a group: each is an object
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_BYTES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_RATES = {**{unit: factor / 8 for unit, factor in _BITS.items()}, **_BYTES}  # bytes per second


@dataclass(frozen=True)
class ConfigEntry:
    """A value in the file, and its position. `key`: as in `nodes[1].speed`, "" for the whole file."""

    file: str
    key: str
    node: yaml.Node

    def wrong(self, valid: str, received: object = None) -> UsageError:
        """Return the error for this value. `received`: shown instead of the value itself."""
        where = f"{self.file}, line {self.node.start_mark.line + 1}" + (f", key {self.key}" if self.key else "")
        return UsageError(f"{where}: must be {valid}. Received: {self._shown() if received is None else received}")

    def mapping(
        self, readers: Mapping[str, Callable[["ConfigEntry"], Any]], required: tuple[str, ...] = ()
    ) -> dict[str, Any]:
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
            return self.node.value or "nothing"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file. Raises UsageError, one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--cluster cannot be read: {error}") from None
    return parse_cluster(text, str(path))


def parse_cluster(text: str, file: str = "cluster.yaml") -> Cluster:
    """Parse a cluster description. `file`: its name in errors. Raises UsageError, one line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{file}, line {line}: must be YAML. Received: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not permit
        raise UsageError(f"{file}, line 1: must be YAML. Received: {error}") from None
    except RecursionError:
        raise UsageError(f"{file}, line 1: must be YAML of a cluster. Received: lists within lists too deep") from None
    if node is None:
        raise UsageError(f"{file}, line 1: must be a mapping with the key nodes. Received: an empty file")
    return _cluster(ConfigEntry(file, "", node))


def check_always_there(cluster: Cluster) -> None:
    """Raise UsageError where a node joins or leaves."""
    for group in cluster.groups:
        if group.joins_s > 0 or not math.isinf(group.leaves_s):
            raise UsageError(
                f"this command needs nodes that neither join nor leave. Received: {group.name}, which joins or leaves"
            )


def read_emulated(file: Path) -> Cluster:
    """Return the cluster of `file`, with all workers that it describes. Raises UsageError if it cannot be emulated."""
    cluster = read_cluster(file).with_workers(None)
    check_always_there(cluster)
    return cluster


def _cluster(entry: ConfigEntry) -> Cluster:
    given = entry.mapping(_CLUSTER, required=("nodes",))
    topology = given.get("topology", STAR)
    if topology != TREE:
        entry.refuse("arity", f"left out unless topology is {TREE}")
    nodes: list[ConfigEntry] = given.pop("nodes")
    groups = [_group(node, i, topology) for i, node in enumerate(nodes)]
    _check_names(nodes, groups)
    if sum(g.count is None for g in groups) > 1:
        raise entry.wrong("a file in which at most one group of nodes has no count", "several without count")
    if topology != STAR:
        entry.refuse("medium", f"left out unless topology is {STAR}")
    if topology == LAYERED:
        _check_layers(entry, groups)
    return Cluster(tuple(groups), **{_FIELDS.get(name, name): value for name, value in given.items()})


def _group(entry: ConfigEntry, index: int, topology: str) -> NodeGroup:
    given = {_FIELDS.get(name, name): value for name, value in entry.mapping(_GROUP).items()}
    if topology != LAYERED:
        entry.refuse("layer", f"left out unless topology is {LAYERED}")
    if topology != STAR:
        entry.refuse("uplink", f"left out unless topology is {STAR}")
    joins_s, leaves_s = given.get("joins_s", 0.0), given.get("leaves_s", math.inf)
    if joins_s >= leaves_s:
        raise entry.wrong("a group that leaves after it joins", f"joins at {joins_s:g} s, leaves at {leaves_s:g} s")
    return NodeGroup(**{"name": f"node{index}" if index else "node", "count": None, **given})


def _check_names(nodes: list[ConfigEntry], groups: list[NodeGroup]) -> None:
    for i, group in enumerate(groups):
        if group.name in [g.name for g in groups[:i]]:
            raise nodes[i].wrong("a group with a name that no other group has", group.name)


def _check_layers(entry: ConfigEntry, groups: list[NodeGroup]) -> None:
    found = {g.layer for g in groups}
    for missing in (layer for layer in LAYERS if layer not in found):
        raise entry.wrong(f"a file with nodes of every layer ({', '.join(LAYERS)})", f"none of {missing}")


# -- single values ----------------------------------------------------------------------------------------------------


def _number(entry: ConfigEntry, valid: str, least: float, *, open_end: bool = False) -> float:
    try:
        value = float(entry.text(valid))
    except ValueError:
        raise entry.wrong(valid) from None
    if not math.isfinite(value) or value < least or (open_end and value == least):
        raise entry.wrong(valid)
    return value


def _positive(entry: ConfigEntry) -> float:
    return _number(entry, "a number more than 0", 0.0, open_end=True)


def _slower(entry: ConfigEntry) -> float:
    return _number(entry, "a number more than 1, how many times slower", 1.0, open_end=True)


def _whole(entry: ConfigEntry) -> int:
    valid = f"a whole number, from 1 to {MOST:,}"
    value = _number(entry, valid, 1)
    if value != int(value) or value > MOST:
        raise entry.wrong(valid)
    return int(value)


def _flag(entry: ConfigEntry) -> bool:
    return _choice("true", "false")(entry) == "true"


def _choice(*valid: str) -> Callable[[ConfigEntry], str]:
    def read(entry: ConfigEntry) -> str:
        said = f"one of {', '.join(valid)}"
        if (value := entry.text(said)) not in valid:
            raise entry.wrong(said)
        return value

    return read


def _name(entry: ConfigEntry) -> str:
    return entry.text("a name")


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


def _time(entry: ConfigEntry) -> float:
    return _quantity(entry, _SECONDS, "a time such as 100 ms", zero=False)


def _moment(entry: ConfigEntry) -> float:
    return _quantity(entry, _SECONDS, "a time such as 100 ms, or 0", zero=True)


def _bandwidth(entry: ConfigEntry) -> float:
    if isinstance(entry.node, yaml.ScalarNode) and entry.node.value == "unlimited":
        return math.inf
    return _quantity(entry, _RATES, "unlimited, or a bandwidth such as 1 Gbit/s", zero=False)


# -- keys -------------------------------------------------------------------------------------------------------------


def _link(entry: ConfigEntry) -> NetworkLink:
    given = entry.mapping({"bandwidth": _bandwidth, "latency": _moment})
    return NetworkLink(given.get("bandwidth", math.inf), given.get("latency", 0.0))


def _speed(entry: ConfigEntry) -> Speed:
    if isinstance(entry.node, yaml.ScalarNode):
        return Speed(_number(entry, "a number more than 0, or a mapping with distribution", 0.0, open_end=True))
    readers = {"distribution": _choice("constant", "gamma"), "mean": _positive, "shape": _positive}
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

_GROUP: dict[str, Callable[[ConfigEntry], Any]] = {
    "name": _name,
    "count": _whole,
    "layer": _choice(*LAYERS),
    "speed": _speed,
    "slowdowns": _slowdowns,
    "link": _link,
    "uplink": _link,
    "joins": _moment,
    "leaves": _time,
}
_CLUSTER: dict[str, Callable[[ConfigEntry], Any]] = {
    "topology": _choice(*TOPOLOGIES),
    "arity": _whole,
    "step": _time,
    "link": _link,
    "server": _link,
    "multicast": _flag,
    "medium": _link,
    "nodes": ConfigEntry.items,
}
