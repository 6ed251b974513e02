"""More cases of placement_cases.py: losses, reductions, lookups, and operations that rearrange."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests.single.placed_execution import Case
from tests.single.placement_cases import booleans, floats, integers, ints

_TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(np.arange(5), np.arange(5) / 2), -1.0)


def losses() -> Iterator[Case]:
    """Losses and accuracies of rows."""
    for rows in (4, 3, 1, 0):
        labels = integers(rows, low=0, high=3)
        yield Case("SoftmaxCrossEntropyWithLogits", (floats(rows, 3), floats(rows, 3)))
        yield Case("SparseSoftmaxCrossEntropyWithLogits", (floats(rows, 3), labels))
        yield Case("InTopK", (floats(rows, 3).astype(np.float32), labels), {"k": 2})
        yield Case("InTopKV2", (floats(rows, 3).astype(np.float32), labels, np.asarray(2, np.int32)))
    yield Case("SoftmaxCrossEntropyWithLogits", (floats(3, 4), floats(1, 4)))
    yield Case("SoftmaxCrossEntropyWithLogits", (floats(1, 4), floats(3, 4)))
    for shape in ((3,), (2, 3), (0, 2), ()):
        for axis in (-1, 0, len(shape)):
            yield Case("OneHot", (integers(*shape, low=0), ints(4), np.asarray(1.0), np.asarray(0.0)), {"axis": axis})


def reductions() -> Iterator[Case]:
    """Reductions, and what runs along a dimension."""
    for op in ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"):
        for shape, axes in [((3, 4), [0]), ((3, 4), [-1]), ((2, 3, 2), [0, -1]), ((2, 3, 2), [1]), ((0, 4), [0]),
                            ((0, 4), [1]), ((3, 4), []), ((1, 3), [0]), ((2, 3), [0, 1]), ((3,), [0]),
                            ((), [])]:  # fmt: skip
            data = booleans(*shape) if op in ("All", "Any") else floats(*shape)
            for keep in (False, True):
                yield Case(op, (data, np.asarray(axes, np.int32)), {"keep_dims": keep})
        if op not in ("All", "Any"):
            yield Case(op, (integers(3, 4), ints(0)))
            yield Case(op, (integers(3, 4), ints(1)))
            yield Case(op, (integers(3, 4, high=120, dtype=np.uint8), ints([0, 1])))
    yield Case("Sum", (floats(3, 4) + 1j * floats(3, 4), ints(0)))
    yield Case("Mean", (floats(3, 4) + 1j * floats(3, 4), ints(0)))
    yield Case("Sum", (np.array([[np.inf, 1.0], [0.0, np.nan], [1.0, -np.inf]]), ints(0)))
    yield Case("Mean", (np.array([[np.inf, 1.0], [0.0, np.nan], [1.0, -np.inf]]), ints(0)))
    for shape, axis in [((3, 4), 0), ((3, 4), -1), ((2, 3, 2), 1), ((0, 2), 1), ((3,), 0)]:
        for op in ("ArgMax", "ArgMin"):
            yield Case(op, (floats(*shape), ints(axis)))
        for op in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
            yield Case(op, (floats(*shape), ints(axis)), {"exclusive": True, "reverse": True})
            yield Case(op, (floats(*shape), ints(axis)))
        yield Case("ReverseV2", (floats(*shape), ints([axis])))
        yield Case("TopKV2", (floats(*shape), ints(2)))
        yield Case("Roll", (floats(*shape), ints(1), ints(axis)))
    yield Case("Roll", (floats(2, 3, 2), ints(1, -2), ints(0, -1)))
    yield Case("ReverseV2", (floats(2, 3, 2), ints([0, -1])))
    for shape in ((5,), (3, 2), (0,)):
        for weights in (floats(*shape), floats(0)):
            for binary in (False, True):
                yield Case("DenseBincount", (integers(*shape, low=0), ints(5), weights), {"binary_output": binary})


def inner() -> Iterator[Case]:
    """Operations on the dimensions at the end."""
    for shape in ((3, 4, 4, 4), (3, 4, 4), (4, 4), (2, 3, 4, 4, 4)):
        x = floats(*shape) + 1j * floats(*shape)
        for op, rank in [("FFT", 1), ("FFT2D", 2), ("FFT3D", 3), ("IFFT", 1), ("IFFT2D", 2), ("IFFT3D", 3)]:
            if len(shape) >= rank:
                yield Case(op, (x,), {"Tcomplex": tf.complex128})
        yield Case("RFFT", (floats(*shape), ints([4])), {"Tcomplex": tf.complex128})
        yield Case("IRFFT", (x, ints([6])), {"Tcomplex": tf.complex128, "Treal": tf.float64})
        yield Case("MatrixBandPart", (floats(*shape), ints(1), ints(0)))
        yield Case("MatrixDiagPart", (floats(*shape),))
        yield Case("MatrixInverse", (floats(*shape) + 3 * np.eye(4),))
        yield Case("Cholesky", (np.broadcast_to(0.1 + 3 * np.eye(4), shape).copy(),))
        yield Case("MatrixDiag", (floats(*shape),))
    yield from matrices()


def matrices() -> Iterator[Case]:
    """Operations on matrices and vectors, with the same dimensions before and with dimensions that broadcast."""
    for shape in ((3, 4, 4), (2, 3, 4, 4), (4, 4), (4, 4, 4), (0, 4, 4)):
        x, z = floats(*shape), floats(*shape) + 1j * floats(*shape)
        for op, length in (("RFFT2D", ints(4, 4)), ("RFFT3D", ints(2, 4, 4))):
            if len(shape) >= len(length):
                yield Case(op, (x, length), {"Tcomplex": tf.complex128})
                yield Case(f"I{op}", (z, length), {"Tcomplex": tf.complex128, "Treal": tf.float64})
        regular = x + 3 * np.eye(4)
        for op in ("LogMatrixDeterminant", "MatrixDeterminant", "Lu", "Qr"):
            yield Case(op, (regular,), {"output_idx_type": tf.int32} if op == "Lu" else {})
        for wanted in (True, False):
            made = None if wanted else 1
            yield Case("Svd", (x[..., :3],), {"compute_uv": wanted}, made)
            yield Case("SelfAdjointEigV2", (regular + np.swapaxes(x, -1, -2),), {"compute_v": wanted}, made)
        yield from diagonals(x)
        yield from solved(regular)


def diagonals(x: Any) -> Iterator[Case]:
    """Diagonals of `x`, and matrices of diagonals."""
    k, band, size, fill = ints(1), ints([-1, 1]), ints(-1), np.asarray(0.5)
    for which in (k, band):
        diagonal = np.asarray(tf.linalg.diag_part(x, k=which))
        for version in ("V2", "V3"):
            yield Case(f"MatrixDiagPart{version}", (x, which, fill))
            yield Case(f"MatrixSetDiag{version}", (x, 2 * diagonal, which))
            yield Case(f"MatrixDiag{version}", (diagonal, which, size, size, fill))
    yield Case("MatrixDiagV3", (x, ints([1]), size, size, fill))
    yield Case("MatrixSetDiag", (x, x[..., 0]))


def solved(x: Any) -> Iterator[Case]:
    """Equations of matrices `x`."""
    right = floats(*x.shape[:-1], 2)
    for op in ("MatrixSolve", "MatrixTriangularSolve"):
        yield Case(op, (x, right))
        yield Case(op, (x, right), {"adjoint": True})
    for one, other in ((x, right[:1] if x.ndim > 2 else right), (x[:1] if x.ndim > 2 else x, right)):
        yield Case("MatrixTriangularSolve", (one, other))
    if x.ndim > 2 and len(x):
        yield Case("MatrixTriangularSolve", (x[0], right))
    yield Case("Cross", (x[..., :3], floats(*x.shape[:-1], 3)))
    for rows, along in ((0, 1), (1, 0), (0, x.ndim - 1)):
        lengths = integers(x.shape[rows], high=x.shape[along] + 1) if x.shape[along] else ints([0] * x.shape[rows])
        yield Case("ReverseSequence", (x, lengths), {"seq_dim": along, "batch_dim": rows})


def lookups() -> Iterator[Case]:
    """Lookups by index, and sums by index."""
    for params, indices, axis, batch in [
        ((4, 2), (3,), 0, 0), ((3, 4), (2, 3), -1, 0), ((3, 4), (3,), 1, 0), ((3, 4, 2), (3, 2), 1, 1),
        ((3, 4, 2), (3, 2), 2, 1), ((3, 4, 2), (3, 2), -1, -1), ((2, 3, 4), (2, 3, 2), -1, -1), ((2, 3, 4),
        (2, 3), 2, 2),
        ((4,), (), 0, 0), ((3, 3), (3,), 0, 0), ((4, 2), (0,), 0, 0), ((2, 3, 4), (5,), 1, 0), ((2, 3, 4),
        (2, 2), -2, 1),
    ]:  # fmt: skip
        data = floats(*params), integers(*indices, low=0, high=params[axis]), ints(axis)
        yield Case("GatherV2", data, {"batch_dims": batch})
    yield Case("GatherV2", (np.asarray(["a", "b"]), integers(3, low=0, high=2), ints(0)))
    for shape in ((3,), (2, 3), (0, 2), (3, 1)):
        keys = integers(*shape, low=0, dtype=np.int64)
        yield Case("LookupTableFindV2", (_TABLE.resource_handle, keys, np.asarray(-1.0)))
    for rows in (3, 2, 0):
        for op in ("LowerBound", "UpperBound"):
            yield Case(op, (np.sort(floats(rows, 4)), floats(rows, 3)))
    variable = tf.Variable(floats(4, 2))
    for shape in ((3,), (2, 3), (0,)):
        yield Case("ResourceGather", (variable, integers(*shape, low=0, high=4)), {"dtype": tf.float64})
        yield Case("GatherNd", (floats(4, 2, 3), integers(*shape, 2, low=0, high=2)))
        yield Case("GatherNd", (floats(4, 2, 3), integers(*shape, 1, low=0, high=2)))
    for data, ids in [((4, 2), (4,)), ((2, 3, 2), (2, 3)), ((3, 3), (3,)), ((0, 2), (0,)), ((4,), (4,)), ((2, 4), ())]:
        yield Case("UnsortedSegmentSum", (floats(*data), integers(*ids, low=-1, high=3), ints(3)))
        yield Case("UnsortedSegmentSum", (integers(*data), integers(*ids, low=-1, high=3), ints(3)))
    for indices, updates, shape in [((3, 1), (3, 2), (4, 2)), ((3, 2), (3,), (4, 2)), ((2, 3, 1), (2, 3), (5,)),
                                    ((1, 1), (1, 3), (3, 3)), ((0, 1), (0, 2), (4, 2)), ((2, 2), (2,),
                                    (3, 3))]:  # fmt: skip
        index = integers(*indices, low=0, high=2)
        yield Case("ScatterNd", (index, floats(*updates), ints(shape)))
        yield Case("ScatterNd", (index, integers(*updates), ints(shape)))
        yield Case("ScatterNd", (index, booleans(*updates), ints(shape)))


def shapes() -> Iterator[Case]:
    """What a shape or an axis rearranges, repeats, pads or cuts."""
    yield from rearranged()
    yield from repeated()
    yield from padded()


def rearranged() -> Iterator[Case]:
    for shape, out in [
        ((3, 4), (12,)), ((4, 3), (2, 6)), ((2, 3, 2), (6, -1)), ((2, 3, 2), (2, 6)), ((4, 2), (4, 1, 2)),
        ((0, 4), (0, 2, 2)),
        ((0, 4), (4, 0)), ((1, 4), (4,)), ((1, 4), (1, 2, 2)), ((12,), (3, 4)), ((4, 4), (1, 16)), ((2, 6, 2),
        (2, 2, 3, 2)),
        ((2, 0, 4), (4, 0, 4)), ((2, 0, 4), (0, -1)), ((6, 1), (1, 6)), ((1,), ()), ((3, 1), (-1,)), ((2, 4), (8, 1)),
    ]:  # fmt: skip
        if not (0 in out and -1 in out):
            yield Case("Reshape", (floats(*shape), ints(out)))
    for shape in ((3, 4), (2, 1, 3), (0, 2), (1, 2)):
        for axis in (0, -1, 1):
            yield Case("ExpandDims", (floats(*shape), ints(axis)))
    for shape, dims in [((3, 1, 2), []), ((2, 3), []), ((1, 3), [0]), ((3, 1), [-1]), ((1, 3, 1), [0, -1]),
                        ((1, 1), []),
                        ((0, 1), []), ((1, 3, 1), [2])]:  # fmt: skip
        yield Case("Squeeze", (floats(*shape),), {"squeeze_dims": dims})
    for shape, order in [((3, 4), (1, 0)), ((2, 3, 2), (2, 0, 1)), ((0, 2, 3), (1, 2, 0)), ((3,), (0,))]:
        yield Case("Transpose", (floats(*shape), ints(order)))
        yield Case("ConjugateTranspose", (floats(*shape) + 1j * floats(*shape), ints(order)))


def repeated() -> Iterator[Case]:
    for shape, out in [((3, 4), (2, 3, 4)), ((1, 4), (3, 4)), ((3, 1), (3, 4)), ((), (2,)), ((0, 1), (0, 3)),
                        ((1, 1), (1, 3)),
                       ((1,), (3, 1))]:  # fmt: skip
        yield Case("BroadcastTo", (floats(*shape), ints(out)))
    for shape, multiples in [
        ((3, 4), (1, 2)),
        ((3, 4), (2, 1)),
        ((1, 3), (3, 1)),
        ((2, 3, 2), (1, 0, 2)),
        ((0, 2), (1, 3)),
    ]:
        yield Case("Tile", (floats(*shape), ints(multiples)))


def padded() -> Iterator[Case]:
    for shape, paddings in [
        ((3, 4), [[0, 0], [1, 2]]),
        ((3, 4), [[1, 0], [0, 0]]),
        ((2, 3, 2), [[0, 0], [0, 1], [0, 0]]),
    ]:
        yield Case("Pad", (floats(*shape), ints(paddings)))
        yield Case("PadV2", (floats(*shape), ints(paddings), np.asarray(7.0)))
        yield Case("MirrorPad", (floats(*shape), ints(paddings)), {"mode": "SYMMETRIC"})
        yield Case(
            "MirrorPadGrad", (floats(*np.add(shape, np.sum(paddings, 1))), ints(paddings)), {"mode": "SYMMETRIC"}
        )
    for shape, begin, sizes in [((3, 4), (0, 1), (3, 2)), ((3, 4), (0, 1), (-1, -1)), ((3, 4), (1, 0), (2, 4)),
                        ((3, 4), (0, 0), (2, 4)),
                                ((3, 4), (3, 0), (-1, 4)), ((0, 4), (0, 1), (0, 2)), ((4, 4), (0, 0),
                                (3, 4))]:  # fmt: skip
        yield Case("Slice", (floats(*shape), ints(begin), ints(sizes)))


def lists() -> Iterator[Case]:
    """Several tensors made one, and the other way."""
    for shape in ((3, 4), (2, 3, 2), (0, 2), (1, 2)):
        for axis in (0, 1, -1):
            yield Case("ConcatV2", (floats(*shape), floats(*shape), ints(axis)))
            yield Case("Pack", (floats(*shape), floats(*shape)), {"axis": axis})
            yield Case("Unpack", (floats(*shape),), {"axis": axis, "num": shape[axis]})
            if shape[axis] % 2 == 0:
                yield Case("Split", (ints(axis), floats(*shape)), {"num_split": 2})
            if shape[axis] > 1:
                sizes = ints([1, shape[axis] - 1])
                yield Case("SplitV", (floats(*shape), sizes, ints(axis)), {"num_split": 2})
                yield Case("SplitV", (floats(*shape), ints([1, -1]), ints(axis)), {"num_split": 2})
    yield Case("ConcatV2", (floats(3, 3), floats(2, 3), ints(0)))
    yield Case("ConcatV2", (floats(3, 3), floats(3, 2), floats(3, 0), ints(1)))
    yield Case("Pack", (np.asarray(1.0), np.asarray(2.0)))


def strided() -> Iterator[Case]:
    """Slices with strides and masks, and their gradients."""
    for shape, begin, end, strides, masks in [
        ((3, 4), [0, 1], [3, 3], [1, 1], {}), ((3, 4), [0, 0], [2, 4], [1, 1], {}),
        ((3, 4), [-3, 0], [9, 2], [1, 1], {}),
        ((3, 4), [0, 1], [0, 2], [1, 1], {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}),
        ((3, 4), [1, 0], [2, 4], [1, 1], {"shrink_axis_mask": 1}), ((3, 4), [0, 0], [3, 4], [-1, 1], {}),
        ((3, 4), [0, 0], [0, 0], [-1, 1], {"begin_mask": 3, "end_mask": 3}),
        ((3, 4), [0, 0], [0, 0], [2, 1], {"begin_mask": 3, "end_mask": 3}),
        ((3, 4), [1], [2], [1], {"shrink_axis_mask": 1}),
        ((3, 4), [0, 0, 0], [0, 0, 0], [1, 1, 1], {"begin_mask": 5, "end_mask": 5, "new_axis_mask": 2}),
        ((2, 3, 2), [0, 1], [0, 2], [1, 1], {"ellipsis_mask": 1}),
        ((2, 3, 2), [1, 0], [2, 0], [1, 1], {"ellipsis_mask": 2}),
        ((2, 3, 2), [0, 0, 1], [0, 0, 2], [1, 1, 1], {"ellipsis_mask": 1, "new_axis_mask": 2, "shrink_axis_mask": 4}),
        ((2, 3, 2), [0, 0, 0], [0, 0, 0], [1, 1, 1], {"new_axis_mask": 1, "ellipsis_mask": 2, "shrink_axis_mask": 4}),
        ((2, 3, 2), [0, -1], [2, 3], [1, 1], {"shrink_axis_mask": 2}),
        ((2, 3, 2), [0, 0], [2, -1], [1, 1], {"begin_mask": 1}),
        ((0, 4), [0, 1], [0, 3], [1, 1], {"begin_mask": 1, "end_mask": 1}), ((3, 3), [0, 0], [3, 2], [1, 1], {}),
        ((3, 4), [0], [0], [1], {"new_axis_mask": 1}), ((3, 4), [0, 0], [-1, 4], [1, 1], {}),
        ((4,), [0], [4], [1], {}),
        ((3, 4), [0, 0], [0, 0], [1, 1], {"new_axis_mask": 1, "shrink_axis_mask": 3}), ((3, 4), [], [], [], {}),
        ((3, 4), [-9, 0], [9, 1], [1, 1], {}), ((1, 3), [0, 0], [1, 2], [1, 1], {"shrink_axis_mask": 1}),
    ]:  # fmt: skip
        spec = [np.asarray(each, np.int32) for each in (begin, end, strides)]
        x = floats(*shape)
        yield Case("StridedSlice", (x, *spec), masks)
        gradient = np.asarray(tf.strided_slice(x, *spec, **masks))
        yield Case("StridedSliceGrad", (ints(shape), *spec, gradient), masks)


def more_cases() -> Iterator[Case]:
    """Yield every case of this file."""
    for group in (losses, reductions, inner, lookups, shapes, lists, strided):
        yield from group()
