"""Test cases of the rule table: for each operation type, global operations on small arrays, with their attributes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replica.rules import elementwise
from tests.single.placed_execution import Case

_GENERATOR = np.random.default_rng(0)
SHAPES = [(3, 4), (2, 3, 2), (0, 4), (1, 3), (4,)]
BROADCAST = [
    ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((3, 4), ()), ((1, 4), (3, 4)), ((2, 3, 2), (3, 1)),
    ((3, 3), (3,)), ((0, 4), (1, 4)), ((1,), (2, 3)), ((1, 1), (3, 4)), ((), (1, 2)), ((3, 1, 2), (3, 1)),
]  # fmt: skip
SAME = [(s, s) for s in SHAPES]
_INTEGER = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert", "LeftShift", "PopulationCount", "RightShift"}
_INTEGER |= {"TruncateMod", "TruncateDiv", "Mod"}
_QUANTIZED = {"FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxArgsGradient", "FakeQuantWithMinMaxVars"}  # in float32
_BOOLEAN = {"LogicalAnd", "LogicalOr", "LogicalNot"}
_OTHERS = {"Angle", "Bucketize", "ComplexAbs", *_QUANTIZED}  # want other inputs
_ALIKE = {"ApproximateEqual"}  # takes no broadcast shapes, as do gradients


def floats(*shape: int) -> Any:
    """Return numbers in 0.1..0.9, where every function is defined."""
    return _GENERATOR.uniform(0.1, 0.9, shape)


def integers(*shape: int, low: int = 1, high: int = 7, dtype: Any = np.int32) -> Any:
    """Return small integers."""
    return _GENERATOR.integers(low, high, shape).astype(dtype)


def booleans(*shape: int) -> Any:
    """Return truths."""
    return _GENERATOR.integers(0, 2, shape).astype(bool)


def ints(*values: Any) -> Any:
    """Return a shape, or an axis."""
    return np.asarray(values[0] if len(values) == 1 else values, np.int32)


def _like(op: str, shape: Sequence[int]) -> Any:
    if op in _BOOLEAN:
        return booleans(*shape)
    return integers(*shape) if op in _INTEGER else floats(*shape)


def unary() -> Iterator[Case]:
    """Functions of one tensor."""
    for op in (
        *sorted({*elementwise._UNARY.split()} - _OTHERS),
        "Neg",
        "Identity",
        "StopGradient",
        "Snapshot",
        "PreventGradient",
    ):
        yield from (Case(op, (_like(op, shape),)) for shape in SHAPES)
    for op in ("CopyHost", "Copy", "ZerosLike", "OnesLike", "Softmax", "LogSoftmax", "L2Loss"):
        yield from (Case(op, (floats(*shape),)) for shape in SHAPES)
    for op in ("Conj", "Real", "Imag", "ComplexAbs", "Angle"):
        yield Case(op, (floats(3, 4) + 1j * floats(3, 4),), {"Tout": tf.float64} if op != "Conj" else {})
    yield Case("Bucketize", (floats(3, 4),), {"boundaries": [0.3, 0.6]})
    yield Case("IdentityN", (floats(3, 4), integers(3)), {"T": [2, 3]})
    for target in (tf.int64, tf.int32, tf.float64):
        yield Case("Bitcast", (floats(3, 4),), {"type": target})
    yield Case("Bitcast", (integers(3, 2),), {"type": tf.float64})
    for op in ("Neg", "Identity", "ZerosLike", "OnesLike"):
        yield Case(op, (integers(3, 2),))


def binary() -> Iterator[Case]:
    """Functions of several tensors that broadcast."""
    three = {"Betainc", "ClipByValue", "SelectV2", *_QUANTIZED}
    others = ("Equal", "NotEqual", "AddV2", "Add", "Sub", "Mul", "RealDiv", "Div", "DivNoNan")
    for op in sorted({*elementwise._BINARY.split(), *others} - three):
        attrs = {"Tout": tf.complex128} if op == "Complex" else {}
        for left, right in SAME if op.endswith("Grad") or op in _ALIKE else BROADCAST:
            yield Case(op, (_like(op, left), _like(op, right)), attrs)
    for op in ("AddV2", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Maximum", "Pow", "SquaredDifference"):
        yield Case(op, (integers(3, 2), integers(1)))
        yield Case(op, (integers(3, 2), integers(3, 2)))
    for op in ("Equal", "NotEqual"):
        yield Case(op, (floats(2, 3), floats(4)), {"incompatible_shape_error": False})
        yield Case(op, (floats(2, 3), floats(1, 3)), {"incompatible_shape_error": False})
        yield Case(op, (floats(2, 3), floats(2, 3)), {"incompatible_shape_error": False})
    for op in ("Mul", "RealDiv", "DivNoNan", "MulNoNan"):
        for number in (0.0, np.inf, np.nan, -2.0):
            yield Case(op, (floats(3, 2), np.asarray(number)))
            yield Case(op, (np.asarray(number), floats(3, 2)))
            yield Case(op, (floats(3, 2), np.full((3, 2), number)))
    yield Case("Div", (10 * integers(3, 2), np.asarray(3, np.int32)))


def several() -> Iterator[Case]:
    """Functions of three or more tensors."""
    for shape in ((3, 4), (0, 4), (2, 3, 2)):
        yield Case("Betainc", (floats(*shape), floats(*shape), floats(*shape)))
        yield Case("ClipByValue", (floats(*shape), np.asarray(0.3), np.asarray(0.6)))
        yield Case("ClipByValue", (floats(*shape), floats(*shape) * 0.2, np.asarray(0.6)))
        yield Case("Select", (booleans(*shape), floats(*shape), floats(*shape)))
        yield Case("Select", (booleans(*shape[:1]), floats(*shape), floats(*shape)))
        yield Case("Select", (np.asarray(True), floats(*shape), floats(*shape)))
        yield Case("AddN", (floats(*shape), floats(*shape), floats(*shape)))
        x = floats(*shape).astype(np.float32) * 4 - 2
        limits = np.asarray(-0.9, np.float32), np.asarray(1.1, np.float32)
        yield Case("FakeQuantWithMinMaxArgs", (x,), {"min": -0.9, "max": 1.1})
        yield Case("FakeQuantWithMinMaxArgsGradient", (floats(*shape).astype(np.float32), x), {"min": -0.9, "max": 1.1})
        yield Case("FakeQuantWithMinMaxVars", (x, *limits))
        yield Case("FakeQuantWithMinMaxVarsGradient", (floats(*shape).astype(np.float32), x, *limits))
    yield Case("AddN", (floats(2, 3),))
    for c, a, b in [
        ((3, 4),) * 3,
        ((3, 1), (3, 4), ()),
        ((4,), (3, 1), (1, 4)),
        ((), (3, 4), (4,)),
        ((3,), (1,), (2, 3)),
    ]:
        yield Case("SelectV2", (booleans(*c), floats(*a), floats(*b)))
    yield Case("SelectV2", (booleans(3, 2), np.full((3, 2), np.nan), floats(3, 2)))
    for source, target in [("float64", "float32"), ("float32", "float64"), ("float64", "int32"), ("int32", "float64"),
                           ("bool", "float64"), ("float64", "bool"), ("int64", "int32"), ("float64", "complex128"),
                           ("float64", "float64")]:  # fmt: skip
        yield Case("Cast", ((3 * floats(3, 2)).astype(source),), {"DstT": tf.as_dtype(target)})


def texts() -> Iterator[Case]:
    """Functions of strings."""
    for shape in SHAPES:
        x = np.char.add("Ab ", integers(*shape).astype(str)).astype(object).reshape(shape)
        for op in ("StringLength", "StringLower", "StringStrip", "StringUpper"):
            yield Case(op, (x,))
        yield Case("AsString", (integers(*shape),))
        yield Case("StringToNumber", (integers(*shape).astype(str).astype(object),), {"out_type": tf.int64})
        for op in ("StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong"):
            yield Case(op, (x,), {"num_buckets": 5, **({"key": [1, 2]} if op.endswith("Strong") else {})})
        yield Case("StaticRegexReplace", (x,), {"pattern": "[1-4]", "rewrite": "z"})
        yield Case("StaticRegexFullMatch", (x,), {"pattern": "Ab [1-4]"})
        pattern, other = np.asarray("Ab [1-4]", object), np.asarray("z", object)
        yield Case("RegexReplace", (x, pattern, other))
        yield Case("RegexFullMatch", (x, pattern))
        yield Case("StringJoin", (x, x, other), {"separator": "-"})
        yield Case("UnicodeTranscode", (x,), {"input_encoding": "UTF-8", "output_encoding": "UTF-16-BE"})
        yield Case("Substr", (x, ints(1), ints(2)))
        if len(shape) < 3:
            yield Case("Substr", (x, integers(*shape, high=3), integers(*shape)))
            yield Case("Substr", (x, integers(*shape[1:], high=3), integers(*shape[1:])))
    yield Case("StringJoin", (other, other))


def contractions() -> Iterator[Case]:
    """Products that sum."""
    for m, k, n in [(3, 4, 2), (4, 4, 4), (1, 3, 2), (0, 3, 2), (3, 1, 2), (2, 0, 3)]:
        for a in (False, True):
            for b in (False, True):
                left, right = floats(*((k, m) if a else (m, k))), floats(*((n, k) if b else (k, n)))
                yield Case("MatMul", (left, right), {"transpose_a": a, "transpose_b": b})
                yield Case("BatchMatMulV2", (left, floats(2, 1, *right.shape)), {"adj_x": a, "adj_y": b})
    for left, right in [((2, 3, 4), (2, 4, 3)), ((1, 3, 4), (2, 4, 3)), ((1, 3, 4), (1, 4, 3)), ((3, 1, 2, 3),
                        (2, 3, 2)),
                        ((3, 3), (3, 3, 3)), ((0, 2, 3), (1, 3, 2))]:  # fmt: skip
        yield Case("BatchMatMulV2", (floats(*left), floats(*right)))
        yield Case("BatchMatMulV3", (floats(*left), floats(*right)), {"Tout": tf.float64})
    yield Case("BatchMatMul", (floats(3, 2, 4), floats(3, 4, 2)))
    yield Case("MatMul", (integers(3, 2), integers(2, 3)))
    for equation, *shapes in [
        ("ij,jk->ik", (3, 4), (4, 2)), ("bij,bjk->bik", (3, 2, 4), (3, 4, 2)),
        ("i,i->", (3,), (3,)), ("ij->j", (3, 4)), ("ij->", (3, 4)), ("ij,k->k", (3, 4), (2,)), ("ii->i", (3, 3)),
        ("i,j->ij", (3,), (3,)), ("ij,ij->ij", (3, 4), (3, 4)), ("...ij,jk->...ik", (2, 3, 4), (4, 2)),
        ("ij,kj->ik", (3, 4), (3, 4)), ("bqhd,bkhd->bhqk", (3, 2, 2, 2), (3, 2, 2, 2)), ("ij->ji", (1, 3)),
        ("bi,bj->bij", (1, 3), (1, 2)), ("ab,bc->ca", (0, 3), (3, 2)), ("iij,j->i", (2, 2, 3), (3,)),
    ]:  # fmt: skip
        yield Case("Einsum", tuple(floats(*s) for s in shapes), {"equation": equation})


def biases() -> Iterator[Case]:
    """Biases and filters' gradients."""
    for shape in [(3, 4), (3, 2, 4), (0, 4), (3, 2, 2, 4)]:
        yield Case("BiasAdd", (floats(*shape), floats(4)))
        yield Case("BiasAddGrad", (floats(*shape),))
    yield Case("BiasAdd", (floats(3, 2, 2, 4), floats(2)), {"data_format": "NCHW"})
    yield Case("BiasAdd", (floats(3, 2, 4), floats(2)), {"data_format": "NCHW"})
    yield Case("BiasAddGrad", (floats(3, 2, 2, 4),), {"data_format": "NCHW"})
    yield Case("BiasAddGrad", (floats(3, 3, 4),), {"data_format": "NCHW"})


def convolutions() -> Iterator[Case]:
    """Convolutions and their gradients, on rows of images."""
    for rows in (3, 2, 1):
        for padding, strides in (("SAME", 2), ("VALID", 1)):
            two = {"strides": [1, strides, strides, 1], "padding": padding}
            x, filters, sizes = floats(rows, 4, 3, 2), floats(2, 2, 2, 3), ints(rows, 4, 3, 2)
            out = np.asarray(tf.raw_ops.Conv2D(input=x, filter=filters, **two))
            yield Case("Conv2D", (x, filters), two)
            yield Case("Conv2DBackpropFilter", (x, ints(2, 2, 2, 3), out), two)
            yield Case("Conv2DBackpropInput", (sizes, filters, out), two)
            out = np.asarray(tf.raw_ops.DepthwiseConv2dNative(input=x, filter=filters, **two))
            yield Case("DepthwiseConv2dNative", (x, filters), two)
            yield Case("DepthwiseConv2dNativeBackpropFilter", (x, ints(2, 2, 2, 3), out), two)
            yield Case("DepthwiseConv2dNativeBackpropInput", (sizes, filters, out), two)
            three = {"strides": [1, 1, strides, strides, 1], "padding": padding}
            x, filters = floats(rows, 2, 4, 3, 2), floats(1, 2, 2, 2, 3)
            out = np.asarray(tf.raw_ops.Conv3D(input=x, filter=filters, **three))
            yield Case("Conv3D", (x, filters), three)
            yield Case("Conv3DBackpropFilterV2", (x, ints(1, 2, 2, 2, 3), out), three)
            yield Case("Conv3DBackpropInputV2", (ints(rows, 2, 4, 3, 2), filters, out), three)
    x, filters = floats(3, 4, 3, 2), floats(2, 2, 2, 3)
    explicit = {"strides": [1, 1, 1, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 0, 2, 0, 0]}
    yield Case("Conv2D", (x, filters), explicit)
    yield Case("Conv2D", (x, filters), {"strides": [1] * 4, "padding": "SAME", "dilations": [1, 2, 2, 1]})


def pooling() -> Iterator[Case]:
    """Pooling and its gradients."""
    for rows in (3, 2, 0):
        for padding in ("SAME", "VALID"):
            two = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 1, 1], "padding": padding}
            x = floats(rows, 4, 3, 2).astype(np.float32)  # gradients know no other type
            out = np.asarray(tf.raw_ops.MaxPool(input=x, **two))
            gradient = floats(*out.shape).astype(np.float32)
            yield Case("MaxPool", (x,), two)
            yield Case("MaxPoolV2", (x, ints(1, 2, 2, 1), ints(1, 2, 1, 1)), {"padding": padding})
            yield Case("MaxPoolGrad", (x, out, gradient), two)
            yield Case("MaxPoolGradV2", (x, out, gradient, ints(1, 2, 2, 1), ints(1, 2, 1, 1)), {"padding": padding})
            yield Case("AvgPool", (x,), two)
            yield Case("AvgPoolGrad", (ints(x.shape), gradient), two)
            three = {"ksize": [1, 1, 2, 2, 1], "strides": [1, 1, 2, 1, 1], "padding": padding}
            x = floats(rows, 2, 4, 3, 2).astype(np.float32)
            out = np.asarray(tf.raw_ops.MaxPool3D(input=x, **three))
            yield Case("MaxPool3D", (x,), three)
            yield Case("MaxPool3DGrad", (x, out, out), three)
            yield Case("AvgPool3D", (x,), three)
            yield Case("AvgPool3DGrad", (ints(x.shape), out), three)


def images() -> Iterator[Case]:
    """Operations on pictures."""
    for rows in (3, 2):
        x = floats(rows, 4, 2, 4)
        yield Case("LRN", (x.astype(np.float32),))
        for op in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"):
            yield Case(op, (x, ints(3, 5)), {"half_pixel_centers": True})
        gradient = floats(rows, 3, 5, 4).astype(np.float32)
        yield Case("ResizeBilinearGrad", (gradient, x), {"half_pixel_centers": True})
        yield Case("ResizeBicubicGrad", (gradient, x), {"half_pixel_centers": True})
        yield Case("ResizeNearestNeighborGrad", (floats(rows, 3, 5, 4), ints(4, 2)), {"half_pixel_centers": True})
        y = floats(rows, 4, 2, 4).astype(np.float32)
        yield Case("LRNGrad", (y, y, y))
        for count in (1, rows):
            fill = {"interpolation": "BILINEAR"}
            moved = y, floats(count, 8).astype(np.float32), ints(3, 3)
            yield Case("ImageProjectiveTransformV2", moved, {**fill, "dtype": tf.float32})
            yield Case(
                "ImageProjectiveTransformV3", (*moved, np.asarray(0.5, np.float32)), {**fill, "dtype": tf.float32}
            )
        dilation = {"strides": [1] * 4, "rates": [1] * 4, "padding": "SAME"}
        yield Case("Dilation2D", (x, floats(2, 2, 4)), dilation)
        yield Case("DepthToSpace", (x,), {"block_size": 2})
        yield Case("SpaceToDepth", (x,), {"block_size": 2})
        sizes = {"ksizes": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"}
        yield Case("ExtractImagePatches", (x,), sizes)
        for shape in ((rows, 4, 2, 3), (4, rows, 3)):
            for op in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
                yield Case(op, (floats(*shape).astype(np.float32), np.asarray(0.5, np.float32)))
        for shape in ((rows, 2, 3), (3,), (2, 3)):
            yield Case("RGBToHSV", (floats(*shape),))
            yield Case("HSVToRGB", (floats(*shape),))


def elementary_cases() -> Iterator[Case]:
    """Yield every case of this file."""
    for group in (unary, binary, several, texts, contractions, biases, convolutions, pooling, images):
        yield from group()
