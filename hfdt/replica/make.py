"""A rank, made when the script has imported TensorFlow: before that nothing of it may be."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdt.errors import UserError
from hfdt.rule import StepRule

if TYPE_CHECKING:
    from fdt.service.meeting import Meeting


def make_rank(meeting: "Meeting", options: Mapping[str, str]) -> Any:
    from hfdt.replica.rank import Rank

    return Rank(meeting, options)


def step_rule(text: str) -> StepRule:
    """Raises UserError for a rule of another kind: those train on their own between rounds, or on blocks."""
    from hfdt import rulebook

    made = rulebook.make(text)
    if not isinstance(made, StepRule):
        raise UserError(f"a training loop of the script's own takes rules that exchange gradients. Received: {text}")
    return made
