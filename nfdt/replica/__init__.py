"""NFDT for scripts with their own training loops, where every rank runs the script (client_shim/replica).

The workers take whole batches of the stream in turn. Rank 0, the user's own process, is the parameter server. When it
applies its own gradient it also applies the gradients that have arrived, one by one, with the script's optimizer, and
answers with weights. So its variables are the server's, and the script reads trained weights from them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.process_group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], show_line: Callable[[str], None]) -> Any:
    """Return the object of this rank in a replica script."""
    from nfdt import algorithms
    from nfdt.options import approximation
    from nfdt.replica.rank import RoundRobinRank

    rule = options.get("rule")
    exact = rule is None or algorithms.make(rule).exact_alone
    if group.rank == 0 and (note := approximation(rule or "nfdt", group.size, exact_alone=exact)):
        show_line(note)
    return RoundRobinRank(group, options)
