"""Rules of reductions, and of operations along one dimension: softmax, sorting, cumulative sums."""

import numpy as np

from replica.placement import PARTIAL, REPLICATE, Partial, Shard
from replica.plan import Arg, OpCall, Plan, any_partial, keeping, rule


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def reduced(call: OpCall) -> Plan | None:
    """Reduce other dimensions in place; a sum or mean over the divided one is Partial."""
    arg, axes = call.args[0], axes_of(call)
    if axes is None or isinstance(call.args[1].placement, (Shard, Partial)):
        return None
    if isinstance(arg.placement, Partial):
        linear = call.op == "Sum" or (call.op == "Mean" and _is_exact(arg))
        return keeping(call) if linear else None
    if not isinstance(arg.placement, Shard):
        return None
    if arg.placement.axis not in axes:
        return keeping(call, arg.placement if call.attrs.get("keep_dims", False) else arg.placement.without(axes))
    if call.op == "Sum":
        return keeping(call, PARTIAL)
    return _mean(arg, axes) if call.op == "Mean" else None


def _mean(arg: Arg, axes: set[int]) -> Plan | None:
    """Plan a mean over the divided dimension: the local sum divided by the global count."""
    counted = [(arg.shape or ())[axis] for axis in axes]
    if None in counted or not _is_exact(arg):
        return None
    count = int(np.prod([n for n in counted if n is not None]))
    return Plan((arg.placement, REPLICATE), (PARTIAL,), op="Sum", scale=1.0 / count) if count else None


def _is_exact(arg: Arg) -> bool:
    """Return whether a mean neither truncates, as of integers, nor overflows before the division."""
    return arg.dtype in ("float32", "float64", "complex64", "complex128")


def axes_of(call: OpCall, index: int = 1) -> set[int] | None:
    """Return the dimensions that input `index` names, counted from the front."""
    axes = call.integers(index)
    return None if axes is None else {axis % max(call.args[0].rank, 1) for axis in axes}


@rule("L2Loss")
def l2_loss(call: OpCall) -> Plan | None:
    """Sum squares: half the sum of squares is a sum over elements."""
    placement = call.args[0].placement
    return Plan((placement,), (PARTIAL,)) if isinstance(placement, Shard) else None


# The number of last dimensions on which an operation works; it runs for each index of the dimensions before them.
_INNER = {
    **dict.fromkeys("Softmax LogSoftmax TopKV2 FFT IFFT RFFT IRFFT RGBToHSV HSVToRGB MatrixDiag".split(), 1),
    **dict.fromkeys("FFT2D IFFT2D RFFT2D IRFFT2D Cholesky LogMatrixDeterminant Lu MatrixBandPart".split(), 2),
    **dict.fromkeys("MatrixDeterminant MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixInverse Qr".split(), 2),
    **dict.fromkeys("FFT3D IFFT3D RFFT3D IRFFT3D AdjustContrastv2 AdjustHue AdjustSaturation".split(), 3),
}
_VECTORS = {"Svd": "compute_uv", "SelfAdjointEigV2": "compute_v"}  # without this attribute they have one output


@rule(*_INNER)
def inner(call: OpCall) -> Plan | None:
    """Keep a division of the dimensions before those on which the operation works."""
    return keeping(call) if _divided_before(call, _INNER[call.op]) else None


def _divided_before(call: OpCall, inner: int) -> bool:
    """Return whether the first input is divided along a dimension before its `inner` last ones."""
    placement = call.args[0].placement
    return isinstance(placement, Shard) and placement.axis < call.args[0].rank - inner


@rule(*_VECTORS)
def decomposed(call: OpCall) -> Plan | None:
    """Decompose each matrix; vectors that are not wanted are empty tensors."""
    if not _divided_before(call, 2):
        return None
    placement, empty = call.args[0].placement, 2 if call.op == "Svd" else 1
    wanted = bool(call.attrs.get(_VECTORS[call.op], True))
    return keeping(call) if wanted else Plan((placement,), (placement, *[REPLICATE] * empty))


@rule("MatrixDiagV2", "MatrixDiagV3")
def diagonals(call: OpCall) -> Plan | None:
    """Make matrices of diagonals: the last dimension, or the last two where a matrix may have several."""
    which = call.integers(1)
    return keeping(call) if _divided_before(call, 1 if which is not None and which[0] == which[-1] else 2) else None


@rule("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def with_diagonal(call: OpCall) -> Plan | None:
    """Replace diagonals of matrices whose dimensions before are those of the diagonals."""
    matrices, diagonal, *rest = call.args
    target = next((arg.placement for arg in (matrices, diagonal) if isinstance(arg.placement, Shard)), None)
    if target is None or target.axis >= matrices.rank - 2 or any_partial(call.args):
        return None
    if {(arg.shape or ())[target.axis] for arg in (matrices, diagonal)} != {target.total}:
        return None
    return Plan((target, target, *[REPLICATE] * len(rest)), (target,))


@rule("ReverseSequence")
def reversed_rows(call: OpCall) -> Plan | None:
    """Reverse the start of each row; not along the divided dimension."""
    tensor, lengths = call.args
    rows, along = int(call.attrs.get("batch_dim", 0)), int(call.attrs.get("seq_dim", -1))
    target = tensor.placement if isinstance(tensor.placement, Shard) else lengths.placement
    if not isinstance(target, Shard) or any_partial(call.args) or min(rows, along) < 0:
        return None
    target = target if target is tensor.placement else target.at(rows)
    if target.axis == along or (tensor.shape or ())[target.axis] != target.total:
        return None
    return Plan((target, target.at(0) if target.axis == rows else REPLICATE), (target,))


@rule("DenseBincount")
def bincount(call: OpCall) -> Plan | None:
    """Count values. The counts of a divided vector are Partial; the counts of divided rows are divided alike."""
    data, _, weights = call.args
    placement = data.placement
    if not isinstance(placement, Shard) or placement.axis != 0 or any_partial(call.args):
        return None
    binary = bool(call.attrs.get("binary_output", False))
    if data.rank == 1 and (binary or weights.dtype not in ("int32", "int64", "float32", "float64")):
        return None
    if weights.shape != data.shape and weights.shape != (0,):
        return None
    weighted = REPLICATE if weights.shape == (0,) else placement
    return Plan((placement, REPLICATE, weighted), (PARTIAL if data.rank == 1 else placement,))


@rule("ArgMax", "ArgMin")
def arg_max(call: OpCall) -> Plan | None:
    """Remove a dimension that is not the divided one."""
    placement, axes = call.args[0].placement, axes_of(call)
    if not isinstance(placement, Shard) or axes is None or placement.axis in axes:
        return None
    return keeping(call, placement.without(axes))


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2", "Roll")
def along(call: OpCall) -> Plan | None:
    """Run along dimensions that are not the divided one."""
    placement, axes = call.args[0].placement, axes_of(call, 2 if call.op == "Roll" else 1)
    if not isinstance(placement, Shard) or axes is None or placement.axis in axes:
        return None
    return keeping(call)
