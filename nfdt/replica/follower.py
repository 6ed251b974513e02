"""Process of a worker of a replica script: `python -m nfdt.replica.follower`; `make_rank` is rank 0's factory too."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.process_group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], say: Callable[[str], None]) -> Any:
    """Return the object of this rank in a replica script."""
    from nfdt.replica.rank import RoundRobinRank

    return RoundRobinRank(group, options)


if __name__ == "__main__":
    from client_shim.replica.follow import follow

    follow(make_rank)
