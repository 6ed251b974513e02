"""Rules of operations that rearrange a tensor by a given global shape."""

from collections.abc import Sequence

import numpy as np

from replica.placement import PARTIAL, REPLICATE, Partial, Shard
from replica.plan import Array, OpCall, Plan, any_partial, keeping, per_rank, rule

ASKING = frozenset("Shape ShapeN Size Rank TensorListElementShape".split())  # operations that only return shapes


def known_outputs(call: OpCall) -> list[Array] | None:
    """Return the outputs of an operation that only returns global shapes; None for others, or if unknown."""
    lists = any(arg.dtype == "variant" for arg in call.args)
    if call.op not in ASKING or any(arg.shape is None for arg in call.args):
        return None
    if lists != (call.op == "TensorListElementShape"):
        return None
    dtype = np.int64 if "int64" in (call.dtype("out_type"), call.dtype("shape_type")) else np.int32
    if lists:
        return [np.asarray([-1 if n is None else n for n in call.args[0].shape or ()], dtype)]
    if call.op == "Rank":
        return [np.asarray(call.args[0].rank, np.int32)]
    if any(n is None for arg in call.args for n in arg.shape or ()):
        return None
    if call.op == "Size":
        return [np.asarray(call.args[0].elements, dtype)]
    return [np.asarray(arg.shape, dtype).reshape(-1) for arg in call.args]


@rule("Reshape")
def reshape(call: OpCall) -> Plan | None:
    """Keep a division whose boundaries are also boundaries of the new shape."""
    arg, wanted = call.args[0], call.integers(1)
    if isinstance(arg.placement, Partial):
        return keeping(call)
    if not isinstance(arg.placement, Shard) or wanted is None or None in (arg.shape or ()):
        return None
    shape = [n for n in arg.shape or () if n is not None]
    out = _resolved(wanted, int(np.prod(shape)))
    division = reshaped(shape, arg.placement, out)
    if division is None:
        return None
    values = per_rank(out, division.axis, division.sizes, np.asarray(call.value(1)))
    return Plan((arg.placement, REPLICATE), (division,), {1: values})


def _resolved(wanted: Sequence[int], elements: int) -> list[int]:
    """Replace -1 by the number that it stands for."""
    known = int(np.prod([n for n in wanted if n >= 0]))
    return [n if n >= 0 else (elements // known if known else 0) for n in wanted]


def reshaped(shape: Sequence[int], placement: Shard, out: Sequence[int]) -> Shard | None:
    """Return the division of `out` that has the same elements, in the same order, as `placement` of `shape`.

    Both divide blocks of equal size: one block for each index of the dimensions before the divided one.
    """
    before = int(np.prod(shape[: placement.axis]))
    unit = int(np.prod(shape[placement.axis + 1 :]))
    for axis, length in enumerate(out):
        inner = int(np.prod(out[axis + 1 :]))
        if int(np.prod(out[:axis])) != before or length < 2 or inner == 0 or unit == 0:
            continue
        if all(n * unit % inner == 0 for n in placement.sizes) and placement.total * unit == length * inner:
            return Shard(axis, tuple(n * unit // inner for n in placement.sizes))
    return None


@rule("ExpandDims")
def expand_dims(call: OpCall) -> Plan | None:
    """Insert a dimension."""
    placement, where = call.args[0].placement, call.integers(1)
    if where is None:
        return None
    at = where[0] % (call.args[0].rank + 1)
    return keeping(call, placement.beside(at) if isinstance(placement, Shard) else placement)


@rule("Squeeze")
def squeeze(call: OpCall) -> Plan | None:
    """Remove dimensions of global size 1, named explicitly: a rank's part may have size 1 by chance."""
    arg = call.args[0]
    assert arg.shape is not None
    named = call.attrs.get("squeeze_dims") or call.attrs.get("axis") or []
    if not named and None in arg.shape:
        return None
    gone = {int(n) % arg.rank for n in named} or {i for i, n in enumerate(arg.shape) if n == 1}
    out = arg.placement
    if isinstance(out, Shard):
        if out.axis in gone or (not gone and 1 in out.sizes):
            return None
        out = out.without(gone)
    return Plan((arg.placement,), (out,), attrs={"squeeze_dims": sorted(gone)} if gone else {})


@rule("Transpose", "ConjugateTranspose")
def transpose(call: OpCall) -> Plan | None:
    """Permute the divided dimension with the others."""
    placement, order = call.args[0].placement, call.integers(1)
    if order is None:
        return None
    return keeping(call, placement.at(order.index(placement.axis)) if isinstance(placement, Shard) else placement)


@rule("BroadcastTo")
def broadcast_to(call: OpCall) -> Plan | None:
    """Broadcast other dimensions; None for a Partial, which the caller then replicates."""
    arg, out = call.args[0], call.integers(1)
    placement = arg.placement
    if not isinstance(placement, Shard) or out is None:
        return None
    division = placement.at(placement.axis + len(out) - arg.rank)
    if out[division.axis] != division.total:
        return None
    values = per_rank(out, division.axis, division.sizes, np.asarray(call.value(1)))
    return Plan((placement, REPLICATE), (division,), {1: values})


@rule("Tile")
def tile(call: OpCall) -> Plan | None:
    """Repeat other dimensions."""
    placement, multiples = call.args[0].placement, call.integers(1)
    if not isinstance(placement, Shard) or multiples is None or multiples[placement.axis] != 1:
        return None
    return keeping(call)


@rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def pad(call: OpCall) -> Plan | None:
    """Pad other dimensions. MirrorPadGrad refuses a rank without rows."""
    placement, paddings = call.args[0].placement, call.value(1)
    if not isinstance(placement, Shard) or paddings is None or np.any(paddings[placement.axis]):
        return None
    if call.op == "MirrorPadGrad" and 0 in placement.sizes:
        return None
    return keeping(call)


@rule("Slice")
def slice_of(call: OpCall) -> Plan | None:
    """Take all of the divided dimension and any part of others."""
    arg, begin, size = call.args[0], call.integers(1), call.integers(2)
    placement = arg.placement
    if begin is None or size is None:
        return None
    if isinstance(placement, Partial):
        return keeping(call)
    if not isinstance(placement, Shard):
        return None
    axis = placement.axis
    if begin[axis] != 0 or size[axis] not in (-1, placement.total):
        return None
    values = per_rank(size, axis, placement.sizes, np.asarray(call.value(2)))
    return Plan((placement, REPLICATE, REPLICATE), (placement,), {2: values})


@rule("ConcatV2")
def concat(call: OpCall) -> Plan | None:
    """Concatenate along another dimension than the divided one."""
    *args, axis_arg = call.args
    at = call.integers(len(args))
    if at is None or isinstance(axis_arg.placement, Shard):
        return None
    if any_partial(args):
        alike = all(isinstance(arg.placement, Partial) for arg in args)
        return Plan((*(PARTIAL for _ in args), REPLICATE), (PARTIAL,)) if alike else None
    target = _common(call, len(args))
    if target is None or at[0] % args[0].rank == target.axis:
        return None
    return Plan((*(target for _ in args), REPLICATE), (target,))


@rule("Pack")
def pack(call: OpCall) -> Plan | None:
    """Stack tensors that are divided alike."""
    if all(isinstance(arg.placement, Partial) for arg in call.args):
        return Plan((PARTIAL,) * len(call.args), (PARTIAL,))
    target = None if any_partial(call.args) else _common(call, len(call.args))
    if target is None:
        return None
    at = int(call.attrs.get("axis", 0)) % (call.args[0].rank + 1)
    return Plan((target,) * len(call.args), (target.beside(at),))


def _common(call: OpCall, count: int) -> Shard | None:
    """Return the first division among the inputs, if all have its dimension in full."""
    shards = [arg.placement for arg in call.args[:count] if isinstance(arg.placement, Shard)]
    if not shards or any((arg.shape or ())[shards[0].axis] != shards[0].total for arg in call.args[:count]):
        return None
    return shards[0]


@rule("Unpack")
def unpack(call: OpCall) -> Plan | None:
    """Split along another dimension than the divided one."""
    placement = call.args[0].placement
    if not isinstance(placement, Shard):
        return keeping(call)
    at = int(call.attrs.get("axis", 0)) % call.args[0].rank
    return None if at == placement.axis else keeping(call, placement.without([at]))


@rule("Split", "SplitV")
def split(call: OpCall) -> Plan | None:
    """Keep the placement if another dimension than the divided one is split."""
    index, axis_index = (1, 0) if call.op == "Split" else (0, 2)
    placement, at = call.args[index].placement, call.integers(axis_index)
    if at is None or (isinstance(placement, Shard) and at[0] % call.args[index].rank == placement.axis):
        return None
    return Plan(tuple(placement if i == index else REPLICATE for i in range(len(call.args))), (placement,))
