"""A worker, made when the script has imported TensorFlow: before that nothing of it may be."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdt.service.meeting import Meeting


def make_rank(meeting: "Meeting", options: Mapping[str, str], say: Callable[[str], None]) -> Any:
    from nfdt.replica.rank import Rank

    return Rank(meeting, options)
