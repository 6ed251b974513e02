"""The tensors from which a session's fetched numbers are computed, and what they depend on.

They determine how a number may be combined over ranks: one that no row of the batch reaches is equal on all ranks, and
one that no update reaches can be fetched of the whole batch without training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions.gradients import Gradients
from client_shim.replica.sessions.plans import FetchPlan, ancestors, held_by, is_moving, is_random

_BRANCHES = ("If", "While", "Case")  # whose functions may change variables
_MERGED, _SCALAR = "MergeSummary", "ScalarSummary"


@dataclass(frozen=True)
class CellSource:
    """The tensor of a cell.

    Attributes:
        tensor: The scalar of a summary; else the fetched tensor itself.
        divided: Whether rows of the batch reach it, other than through gradients.
        noisy: Whether it draws random numbers.
        moves: Whether a run of it changes variables.
        branches: Whether a run of it may change variables inside a function (`tf.cond`).
        trains: Whether a run of it computes gradients.
        races: Whether it reads a variable in no fixed order with the run's update of it.
    """

    tensor: Any
    divided: bool = True
    noisy: bool = False
    moves: bool = False
    branches: bool = False
    trains: bool = False
    races: bool = False


class CellSources:
    """The sources of the cells of a run's fetches.

    Args:
        plan: The run.
        feeds: What it is fed.
        rows: Rows of the batch.
        gradients: The gradients of all graphs.
    """

    def __init__(self, plan: FetchPlan, feeds: Mapping[Any, Any], rows: int, gradients: Gradients) -> None:
        entries = feeding.divided(feeds, rows)
        self._fed = frozenset(str(each.name) for each in feeds if hasattr(each, "name"))
        self._entries = {str(each.name) for each in entries}
        self._gradients = gradients
        self._reached = plan.reached_from(entries, gradients)
        self._moved = plan.moved()
        self._before_update = ancestors([t for taken in plan.taken for t in taken.outputs], self._fed)

    def of(self, fetched: Any, count: int) -> list[CellSource]:
        """Return the source of each of the `count` cells of a fetched tensor."""
        scalars = _scalars(fetched) if count else []
        return [self._source(each) for each in (scalars if len(scalars) == count else [fetched] * count)]

    def _source(self, tensor: Any) -> CellSource:
        operations = ancestors([tensor], self._fed)
        moves = any(is_moving(o) or o.type.startswith("Restore") for o in operations)
        return CellSource(
            tensor,
            tensor.name in self._entries or tensor.op in self._reached,
            any(map(is_random, operations)),
            moves,
            any(o.type in _BRANCHES for o in operations),
            any(self._gradients.of(o) is not None for o in operations),
            not moves and held_by(tensor) is None and any(map(self._races, operations - self._before_update)),
        )

    def _races(self, operation: Any) -> bool:
        return any(held_by(tensor) in self._moved for tensor in operation.inputs)


def _scalars(tensor: Any) -> list[Any]:
    """Return the scalars of a summary, in their order; none where they cannot be fetched."""
    if tensor.op.type == _MERGED:
        return [scalar for part in tensor.op.inputs for scalar in _scalars(part)]
    if tensor.op.type != _SCALAR:
        return []
    scalar = tensor.op.inputs[1]
    fetched = scalar.shape.rank == 0 and scalar.graph.is_fetchable(scalar)
    return [scalar] if fetched else []
