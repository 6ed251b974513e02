"""Rules of operations that treat each row of a batch alike, of lookups by divided indices, and of strided slices."""

from collections.abc import Iterator, Sequence

import numpy as np

from replica.placement import PARTIAL, REPLICATE, Partial, Shard
from replica.plan import Arg, OpCall, Plan, any_partial, keeping, per_rank, rule, widest

# Inputs with one entry per row along dimension 0; every output has one, too.
_ROWS: dict[str, Sequence[int]] = {
    "Conv2D": (0,),
    "Conv3D": (0,),
    "DepthwiseConv2dNative": (0,),
    "MaxPool": (0,),
    "MaxPoolV2": (0,),
    "MaxPool3D": (0,),
    "MaxPoolGrad": (0, 1, 2),
    "MaxPool3DGrad": (0, 1, 2),
    "AvgPool": (0,),
    "AvgPool3D": (0,),
    "LRN": (0,),
    "LRNGrad": (0, 1, 2),
    "MaxPoolGradV2": (0, 1, 2),
    "Dilation2D": (0,),
    "ResizeBilinear": (0,),
    "ResizeNearestNeighbor": (0,),
    "ResizeBicubic": (0,),
    "ResizeBilinearGrad": (0, 1),
    "ResizeBicubicGrad": (0, 1),
    "ResizeNearestNeighborGrad": (0,),
    "SoftmaxCrossEntropyWithLogits": (0, 1),
    "SparseSoftmaxCrossEntropyWithLogits": (0, 1),
    "DepthToSpace": (0,),
    "SpaceToDepth": (0,),
    "ExtractImagePatches": (0,),
    "InTopK": (0, 1),
    "InTopKV2": (0, 1),
    "LowerBound": (0, 1),
    "UpperBound": (0, 1),
}
# As above; the first number is the index of the input that is the global shape of the result, rows first.
_SHAPED: dict[str, tuple[int, Sequence[int]]] = {
    "Conv2DBackpropInput": (0, (2,)),
    "Conv3DBackpropInputV2": (0, (2,)),
    "DepthwiseConv2dNativeBackpropInput": (0, (2,)),
    "AvgPoolGrad": (0, (1,)),
    "AvgPool3DGrad": (0, (1,)),
}


@rule(*_ROWS)
def by_rows(call: OpCall) -> Plan | None:
    """Keep the rows divided."""
    return _by_rows(call, _ROWS[call.op])


@rule(*_SHAPED)
def shaped(call: OpCall) -> Plan | None:
    """Keep the rows divided in a result whose shape is an input."""
    index, rows = _SHAPED[call.op]
    plan, shape = _by_rows(call, rows), call.integers(index)
    if plan is None or shape is None or not isinstance(plan.outputs[0], Shard) or len(shape) < 4:
        return None
    values = per_rank(shape, 0, plan.outputs[0].sizes, np.asarray(call.value(index)))
    return Plan(plan.inputs, plan.outputs, {index: values})


def _by_rows(call: OpCall, rows: Sequence[int]) -> Plan | None:
    args = [call.args[i] for i in rows]
    shards = [arg.placement for arg in args if isinstance(arg.placement, Shard) and arg.placement.axis == 0]
    if not shards or any((arg.shape or (None,))[0] != shards[0].total for arg in args):
        return None
    if any(arg.rank != args[0].rank for arg in args) and call.op == "SoftmaxCrossEntropyWithLogits":
        return None
    return Plan(tuple(shards[0] if i in rows else REPLICATE for i in range(len(call.args))), (shards[0],))


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def projective(call: OpCall) -> Plan | None:
    """Transform each image by its own row, or all by the only one."""
    alike = (call.args[1].shape or ())[0] == 1
    return _by_rows(call, (0,) if alike else (0, 1))


@rule("OneHot")
def one_hot(call: OpCall) -> Plan | None:
    """Insert a dimension for the classes."""
    placement = call.args[0].placement
    if not isinstance(placement, Shard) or any_partial(call.args):
        return None
    at = int(call.attrs.get("axis", -1))
    at = at if at >= 0 else call.args[0].rank
    return keeping(call, placement.beside(at))


@rule("GatherV2")
def gather(call: OpCall) -> Plan | None:
    """Look up divided indices in a whole tensor, whole indices along an undivided dimension, or row by row."""
    params, indices, _ = call.args
    at, batch = call.integers(2), int(call.attrs.get("batch_dims", 0))
    index = widest((params, indices))
    if at is None or index is None or any_partial(call.args):
        return None
    axis = at[0] % params.rank
    if isinstance(params.placement, Shard) and params.placement.axis == axis and isinstance(indices.placement, Shard):
        index = 1
    batch = batch % indices.rank if batch < 0 else batch
    target = (params, indices)[index].placement
    assert isinstance(target, Shard)
    if target.axis < batch:
        if {(params.shape or ())[target.axis], (indices.shape or ())[target.axis]} != {target.total}:
            return None
        return Plan((target, target, REPLICATE), (target,))
    if index == 1:
        return Plan((REPLICATE, target, REPLICATE), (target.at(axis + target.axis - batch),))
    if target.axis == axis:
        return None
    out = target.axis if target.axis < axis else target.axis - 1 + indices.rank - batch
    return Plan((target, REPLICATE, REPLICATE), (target.at(out),))


@rule("ResourceGather")
def resource_gather(call: OpCall) -> Plan | None:
    """Look up divided indices in a variable."""
    target = call.args[1].placement
    if not isinstance(target, Shard) or int(call.attrs.get("batch_dims", 0)):
        return None
    return Plan((REPLICATE, target), (target,))


@rule("LookupTableFindV2")
def table_lookup(call: OpCall) -> Plan | None:
    """Look up divided keys in a table of numbers, which all ranks have alike; a key may be all of the last dimension.

    In a loop or a branch the table is not known.
    """
    _, keys, default = call.args
    target, last = keys.placement, keys.rank - 1
    if not isinstance(target, Shard) or 0 < target.axis == last or default.shape != () or call.within:
        return None
    return Plan((REPLICATE, target, REPLICATE), (target,))


@rule("GatherNd")
def gather_nd(call: OpCall) -> Plan | None:
    """Look up divided index vectors in a whole tensor."""
    target = call.args[1].placement
    if not isinstance(target, Shard) or target.axis == call.args[1].rank - 1 or any_partial(call.args):
        return None
    return Plan((REPLICATE, target), (target,))


@rule("UnsortedSegmentSum")
def segment_sum(call: OpCall) -> Plan | None:
    """Sum rows that are divided like their segment numbers: each rank's sums are Partial."""
    data, ids, _ = call.args
    index = widest((data, ids))
    if index is None or any_partial(call.args):
        return None
    target = (data, ids)[index].placement
    assert isinstance(target, Shard)
    if target.axis >= ids.rank:
        count = call.integers(2)
        out = target.at(target.axis - ids.rank + 1)
        return Plan((target, REPLICATE, REPLICATE), (out,)) if count is not None else None
    if (data.shape or ())[target.axis] != target.total or (ids.shape or ())[target.axis] != target.total:
        return None
    return Plan((target, target, REPLICATE), (PARTIAL,))


@rule("ScatterNd")
def scatter_nd(call: OpCall) -> Plan | None:
    """Add updates, divided like their indices, to zeros."""
    indices, updates, _ = call.args
    shards = [p for p in (indices.placement, updates.placement) if isinstance(p, Shard)]
    if not shards or shards[0].axis >= indices.rank - 1 or any_partial(call.args):
        return None
    if (updates.shape or ())[shards[0].axis] != shards[0].total or updates.dtype in ("string", "bool"):
        return None
    return Plan((shards[0], shards[0], REPLICATE), (PARTIAL,))


_UNNAMED = 30  # a bit outside of every specification: a dimension that is not named needs no change of a mask


@rule("StridedSlice")
def strided_slice(call: OpCall) -> Plan | None:
    """Take all of the divided dimension and any part of the others; a slice is linear."""
    arg = call.args[0]
    placement = arg.placement
    if isinstance(placement, Partial):
        return keeping(call)
    if not isinstance(placement, Shard):
        return None
    found = _where(call, arg, placement.axis, call.integers(1), call.integers(2), call.integers(3))
    if found is None:
        return None
    position, out = found
    bit = 1 << position
    masks = {name: int(call.attrs.get(name, 0)) | bit for name in ("begin_mask", "end_mask")}
    return Plan((placement, *(REPLICATE,) * 3), (placement.at(out),), attrs=masks)


@rule("StridedSliceGrad")
def strided_slice_gradient(call: OpCall) -> Plan | None:
    """Insert a divided gradient where the slice took all of the divided dimension; the insertion is linear."""
    shape, gradient = call.integers(0), call.args[4]
    placement = gradient.placement
    if isinstance(placement, Partial):
        return Plan((*(REPLICATE,) * 4, PARTIAL), (PARTIAL,))
    if shape is None or not isinstance(placement, Shard):
        return None
    whole = Arg(placement, tuple(shape))
    for axis, length in enumerate(shape):
        found = _where(call, whole, axis, *(call.integers(i) for i in (1, 2, 3))) if length == placement.total else None
        if found is not None and found[1] == placement.axis:
            masks = {name: int(call.attrs.get(name, 0)) | 1 << found[0] for name in ("begin_mask", "end_mask")}
            values = per_rank(shape, axis, placement.sizes, np.asarray(call.value(0)))
            return Plan((*(REPLICATE,) * 4, placement), (placement.at(axis),), {0: values}, masks)
    return None


def _where(
    call: OpCall, arg: Arg, axis: int, begin: list[int] | None, end: list[int] | None, strides: list[int] | None
) -> tuple[int, int] | None:
    """Return `axis`'s position in the slice's specification, and its dimension in the result; None unless all is taken.

    Begin and end may be unknown, as an index of other dimensions is in a loop.
    """
    if strides is None:
        return None
    for position, dimension, out in _dimensions(call, arg.rank, len(strides)):
        if dimension != axis:
            continue
        if position is None:
            return _UNNAMED, out
        length = (arg.shape or ())[axis]
        mask = 1 << position
        if out < 0 or length is None or strides[position] != 1:
            return None
        from_start = int(call.attrs.get("begin_mask", 0)) & mask or (begin and begin[position] in (0, -length))
        to_end = int(call.attrs.get("end_mask", 0)) & mask or (end and end[position] >= length)
        return (position, out) if from_start and to_end else None
    return None


def _dimensions(call: OpCall, rank: int, count: int) -> Iterator[tuple[int | None, int, int]]:
    """Yield (position in the specification, dimension, new dimension) for each dimension of the input.

    The position is None for one that an ellipsis covers or that follows the specification; the new dimension is -1 for
    a removed one.
    """
    ellipsis, new, shrink = (int(call.attrs.get(f"{name}_mask", 0)) for name in ("ellipsis", "new_axis", "shrink_axis"))
    named = sum(1 for p in range(count) if not (ellipsis >> p & 1 or new >> p & 1))
    dimension = out = 0
    for position in range(count):
        if ellipsis >> position & 1:
            for _ in range(rank - named):
                yield None, dimension, out
                dimension, out = dimension + 1, out + 1
        elif new >> position & 1:
            out += 1
        elif shrink >> position & 1:
            yield position, dimension, -1
            dimension += 1
        else:
            yield position, dimension, out
            dimension, out = dimension + 1, out + 1
    for _ in range(rank - dimension):
        yield None, dimension, out
        dimension, out = dimension + 1, out + 1
