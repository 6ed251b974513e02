"""Factory of a rank's object. It imports TensorFlow late, because the script must import it first."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.process_group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], say: Callable[[str], None]) -> Any:
    """Return the object of this rank in a replica script."""
    from nfdt.replica.rank import RoundRobinRank

    return RoundRobinRank(group, options)
