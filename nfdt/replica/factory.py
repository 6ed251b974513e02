"""A worker, made when the script has imported TensorFlow: before that nothing of it may be."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.process_group.group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], say: Callable[[str], None]) -> Any:
    from nfdt.replica.rank import RoundRobinRank

    return RoundRobinRank(group, options)
