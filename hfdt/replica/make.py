"""A rank, made when the script has imported TensorFlow: before that nothing of it may be."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.service.group import ReplicaGroup


def make_rank(group: "ReplicaGroup", options: Mapping[str, str], say: Callable[[str], None]) -> Any:
    from hfdt import rulebook
    from hfdt.replica.sessions import Sessions
    from replica.rank import Rank

    rulebook.step_rule(options.get("rule") or rulebook.DEFAULT)  # refuses one that replicated scripts do not have
    allowed = options.get("allow_replicated") == "1"
    fp16 = options.get("fp16_allreduce") == "1"

    def sessions(count: Any, replicated: Any) -> Sessions:
        return Sessions(group, count, replicated if allowed else None, fp16=fp16)

    return Rank(group, options, say, sessions)
