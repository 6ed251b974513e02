"""HFDT for replicated scripts, which have training loops of their own; see client_shim/replica."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.process_group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], show_line: Callable[[str], None]) -> Any:
    """Make a rank of `group`. Raises UserError for an algorithm that own loops cannot use.

    `show_line` prints a line for the user.
    """
    from client_shim.replica.sessions.patches import installed
    from hfdt import algorithms
    from hfdt.replica.sessions import HfdtSessions
    from hfdt.worker.step_context import bucket_bytes
    from replica.exchange import GroupedExchange
    from replica.rank import PlacedRank

    options = {"rule": algorithms.DEFAULT, **options}
    algorithms.step_algorithm(options["rule"])  # raises UserError for one that replicated scripts cannot use
    allowed = options.get("allow_replicated") == "1"
    exchange = GroupedExchange(group, compress=options.get("compress"), bucket_bytes=bucket_bytes(options))

    def sessions(count: Any, replicated: Any) -> AbstractContextManager[None]:
        return installed(HfdtSessions(group, exchange, count, replicated if allowed else None))

    return PlacedRank(group, exchange, options, show_line, sessions)
