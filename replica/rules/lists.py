"""Rules of TensorLists and Optionals, whose placement is that of the elements, and whose Arg has the elements' shape.

A list whose elements are divided along dimension k is, stacked, a tensor divided along k + 1. Stacking along the
divided dimension itself has no rule: the ranks' lists would differ in length.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from replica.placement import REPLICATE, Placement, Replicate, Shard
from replica.plan import Arg, Array, OpCall, Plan, keeping, rule

# Operations that take the shape of the elements -> the index of that input.
_SHAPED = {
    "TensorListFromTensor": 1,
    "TensorListGather": 2,
    "TensorListGetItem": 2,
    "TensorListPopBack": 1,
    "TensorListScatterV2": 2,
    "TensorListStack": 1,
}


def localized(shape: Array | None, placement: Placement) -> tuple[Array, ...] | None:
    """Return each rank's shape of an element, which may be partly unknown; None if it does not fit `placement`."""
    if shape is None or not isinstance(placement, Shard):
        return None
    axis, total = placement.axis, placement.total
    if shape.ndim == 0 or len(shape) <= axis or shape[axis] == -1:  # unknown; of a list of lists or of Optionals
        return (shape,) * len(placement.sizes)
    if shape[axis] != total:
        return None
    return tuple(np.asarray([*shape[:axis], n, *shape[axis + 1 :]], shape.dtype) for n in placement.sizes)


def _planned(call: OpCall, output: Placement, element: Placement) -> Plan | None:
    """Return the plan that keeps the first input's placement, in which the given shape of an element is the rank's."""
    plan, index = keeping(call, output), _SHAPED.get(call.op)
    if index is None or not isinstance(element, Shard):
        return plan
    shapes = localized(call.value(index), element)
    return None if shapes is None else replace(plan, values={index: shapes})


@rule("TensorListFromTensor", "TensorListScatterV2")
def from_tensor(call: OpCall) -> Plan | None:
    """Split a tensor into a list along its first dimension."""
    element = call.args[0].placement
    if isinstance(element, Shard):
        if element.axis == 0:
            return None
        element = element.without([0])
    return _planned(call, element, element)


@rule("TensorListStack", "TensorListGather")
def stacked(call: OpCall) -> Plan | None:
    """Stack elements along a new first dimension."""
    element = call.args[0].placement
    return _planned(call, element.beside(0) if isinstance(element, Shard) else element, element)


@rule("TensorListGetItem", "TensorListPopBack")
def taken(call: OpCall) -> Plan | None:
    """Return an element; PopBack returns the list first, with unchanged placement."""
    element = call.args[0].placement
    return _planned(call, element, element)


@rule("TensorListSetItem", "TensorListPushBack")
def put(call: OpCall) -> Plan | None:
    """Insert an element; it and the list are converted to one placement."""
    item = 2 if call.op == "TensorListSetItem" else 1
    element = common((call.args[0], call.args[item]))
    if element is None:
        return None
    return Plan(tuple(element if i in (0, item) else REPLICATE for i in range(len(call.args))), (element,))


@rule("TensorListScatterIntoExistingList")
def scattered(call: OpCall) -> Plan | None:
    """Divide a list and a tensor whose slices along dimension 0 become the list's elements."""
    values, tensor, _ = call.args
    given = tensor.placement
    if isinstance(given, Shard):
        if given.axis == 0:
            return None
        given = given.without([0])
    element = common((values, Arg(given, (tensor.shape or ())[1:])))
    if element is None:
        return None
    target = element.beside(0) if isinstance(element, Shard) else element
    return Plan((element, target, REPLICATE), (element,))


@rule("TensorListResize")
def resized(call: OpCall) -> Plan | None:
    """Remove elements at the end, or add elements that are not set."""
    return keeping(call)


@rule("TensorListLength", "OptionalHasValue")
def counted(call: OpCall) -> Plan | None:
    """Count elements; all ranks have the same number."""
    return keeping(call, REPLICATE)


@rule("OptionalFromValue")
def optional(call: OpCall) -> Plan | None:
    """Give an Optional the placement of its one component."""
    return keeping(call) if len(call.args) == 1 else None


@rule("OptionalGetValue")
def component(call: OpCall) -> Plan | None:
    """Return the component, whose local size is known on its rank alone."""
    placement, shapes = call.args[0].placement, call.attrs.get("output_shapes") or []
    if not isinstance(placement, Shard):
        return keeping(call)
    if len(shapes) != 1 or shapes[0].unknown_rank:
        return None
    shape = [None if i == placement.axis or d.size < 0 else d.size for i, d in enumerate(shapes[0].dim)]
    return Plan((placement,), (placement,), attrs={"output_shapes": [tuple(shape)]})


def common(args: Sequence[Arg]) -> Placement | None:
    """Return the placement to which all of these can be converted without a collective; None if there is none."""
    placed = {arg.placement for arg in args if not isinstance(arg.placement, Replicate)}
    if len(placed) > 1:
        return None
    placement: Placement = placed.pop() if placed else REPLICATE
    return placement if all(fits(arg, placement) for arg in args) else None


def fits(arg: Arg, placement: Placement) -> bool:
    """Return whether a whole tensor has the divided dimension; a list's elements may be of unknown shape."""
    if not isinstance(placement, Shard) or arg.dtype == "variant":
        return True
    return arg.shape is not None and len(arg.shape) > placement.axis and arg.shape[placement.axis] == placement.total


def added(args: Sequence[Arg]) -> Plan | None:
    """Add lists, element by element."""
    element = common(args)
    return None if element is None else Plan((element,) * len(args), (element,))
