"""Rules of elementwise operations, with broadcasting, and of operations that are linear in a Partial input."""

import numpy as np

from replica.placement import PARTIAL, REPLICATE, Partial, Placement, Replicate, Shard
from replica.plan import Arg, OpCall, Plan, any_partial, keeping, rule, widest
from replica.rules.lists import added as added_lists

# Elementwise functions of one tensor, then of several.
_UNARY = (
    "Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0e BesselI1e Bucketize Ceil ComplexAbs Cos Cosh "
    "Digamma Elu Erf Erfc Erfinv Exp Expm1 FakeQuantWithMinMaxArgs Floor Inv Invert IsFinite IsInf IsNan LeakyRelu "
    "Lgamma Log Log1p LogicalNot Ndtri OnesLike PopulationCount Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid "
    "Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh"
)
_BINARY = (
    "ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor ClipByValue Complex EluGrad "
    "FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FloorDiv FloorMod Greater GreaterEqual Igamma Igammac "
    "InvGrad LeakyReluGrad LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod MulNoNan NextAfter "
    "Polygamma Pow ReciprocalGrad Relu6Grad ReluGrad RightShift RsqrtGrad SelectV2 SeluGrad SigmoidGrad SoftplusGrad "
    "SoftsignGrad SqrtGrad SquaredDifference TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta"
)
_TEXTS = (
    "AsString RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace StringLength StringLower StringStrip "
    "StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Substr "
    "UnicodeTranscode"
)
_SMALL = 1024  # elements of a Partial that may be sent twice
_BYTES = {"float32": 4, "int32": 4, "uint32": 4, "float64": 8, "int64": 8, "uint64": 8}
_WIDER = {
    # A half type's sum may overflow where its addends do not, and an overflow decides whether a step is skipped.
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "float32": ("float32", "float64"),
    "float64": ("float64",),
}


@rule(*_UNARY.split(), *_BINARY.split(), *_TEXTS.split())
def elementwise(call: OpCall) -> Plan | None:
    """Keep the division of the largest input; broadcast inputs are divided or stay replicated."""
    target = _target(call.args)
    if target is None:
        return None
    placement, out_rank = target
    inputs = tuple(_aligned(arg, placement, out_rank) for arg in call.args)
    return None if None in inputs else Plan(inputs, (placement,))  # type: ignore[arg-type]


@rule("StringJoin")
def texts_joined(call: OpCall) -> Plan | None:
    """Join texts of one shape, and single ones."""
    return elementwise(call) if len({arg.shape for arg in call.args} - {()}) == 1 else None


@rule("FakeQuantWithMinMaxVarsGradient")
def fake_quantized_gradient(call: OpCall) -> Plan | None:
    """Divide the gradient of the input; those of the limits are sums over elements."""
    plan = elementwise(call)
    return None if plan is None else Plan(plan.inputs, (*plan.outputs, PARTIAL, PARTIAL))


@rule("MatrixSolve", "MatrixTriangularSolve", "Cross")
def of_matrices(call: OpCall) -> Plan | None:
    """Keep a division of the dimensions before those of a matrix or a vector, which broadcast for triangular ones."""
    target, inner = _target(call.args), 1 if call.op == "Cross" else 2
    plan = elementwise(call) if target is not None and target[0].axis < target[1] - inner else None
    broadcasts = plan is not None and REPLICATE in plan.inputs
    return None if broadcasts and call.op != "MatrixTriangularSolve" else plan


@rule("Equal", "NotEqual")
def compared(call: OpCall) -> Plan | None:
    """Compare elementwise. No rule applies if `==` may get incompatible shapes, for which it gives one boolean."""
    return elementwise(call) if call.attrs.get("incompatible_shape_error", True) or _compatible(call) else None


def _compatible(call: OpCall) -> bool:
    """Return whether the inputs' shapes are known and can be broadcast together."""
    shapes = [arg.shape for arg in call.args]
    if any(shape is None or None in shape for shape in shapes):
        return False
    pairs = zip(*(reversed(shape or ()) for shape in shapes), strict=False)
    return all(one == other or 1 in (one, other) for one, other in pairs)


@rule("Neg", "Identity", "StopGradient", "Snapshot", "PreventGradient", "CopyHost", "Copy", "Conj", "Real", "Imag")
def linear(call: OpCall) -> Plan | None:
    """Keep any placement: the sum of the results is the result of the sum."""
    return keeping(call)


@rule("IdentityN")
def identities(call: OpCall) -> Plan | None:
    """Keep each input's placement."""
    placements = tuple(arg.placement for arg in call.args)
    return Plan(placements, placements)


@rule("Bitcast")
def bitcast(call: OpCall) -> Plan | None:
    """Keep a division; if the types differ in size, only dimensions after it may appear or vanish."""
    placement = call.args[0].placement
    if not isinstance(placement, Shard) or placement.axis == call.args[0].rank - 1 and not _same_size(call):
        return None
    return keeping(call)


def _same_size(call: OpCall) -> bool:
    sizes = [_BYTES.get(name) for name in (call.args[0].dtype, call.dtype("type"))]
    return sizes[0] == sizes[1] is not None


@rule("ZerosLike")
def zeros_like(call: OpCall) -> Plan | None:
    """Return zeros, which are the same on every rank where the input has its global shape."""
    placement = call.args[0].placement
    return keeping(call, placement if isinstance(placement, Shard) else REPLICATE)


@rule("Cast")
def cast(call: OpCall) -> Plan | None:
    """Keep a division; keep Partial where a floating-point type widens: an addend may overflow a narrower one."""
    arg = call.args[0]
    keeps = isinstance(arg.placement, Shard) or call.dtype("DstT") in _WIDER.get(arg.dtype, ())
    return keeping(call) if keeps else None


@rule("AddV2", "Add", "Sub", "AddN")
def added(call: OpCall) -> Plan | None:
    """Add Partials of one shape on each rank; a replicated addend then counts on rank 0 only.

    A large Partial that is added to a replicated tensor, as a gradient to an optimizer's state, is replicated instead:
    both it and the sum are likely to be needed, and would be sent one after the other. Within a loop nothing is sent.
    """
    if call.args[0].dtype == "variant":
        return added_lists(call.args)
    divided = any(isinstance(arg.placement, Shard) for arg in call.args)
    if divided or not any_partial(call.args) or len({arg.shape for arg in call.args}) > 1:
        return elementwise(call)
    mixed = any(isinstance(arg.placement, Replicate) for arg in call.args)
    if mixed and not call.within and max(arg.elements for arg in call.args) > _SMALL:
        return None
    return Plan((PARTIAL,) * len(call.args), (PARTIAL,))


@rule("Mul", "RealDiv", "Div", "DivNoNan")
def scaled(call: OpCall) -> Plan | None:
    """Scale a Partial by a known finite number; otherwise treat it as an elementwise operation.

    An unknown factor may be infinite, and a rank whose part is 0 would then produce NaN.
    """
    left, right = call.args
    if any(isinstance(arg.placement, Shard) for arg in call.args):
        return elementwise(call)
    if isinstance(left.placement, Partial) and _is_factor(right, left, divides=call.op != "Mul"):
        return Plan((PARTIAL, REPLICATE), (PARTIAL,))
    if call.op == "Mul" and isinstance(right.placement, Partial) and _is_factor(left, right, divides=False):
        return Plan((REPLICATE, PARTIAL), (PARTIAL,))
    return None


@rule("Select")
def select(call: OpCall) -> Plan | None:
    """Select by a condition of the same shape; a condition that is a vector selects whole rows."""
    condition, *others = call.args
    if condition.rank in (0, others[0].rank):
        return elementwise(call)
    index = widest(call.args)
    if index is None or condition.rank != 1:
        return None
    placement = call.args[index].placement
    if not isinstance(placement, Shard) or placement.axis != 0:
        return None
    return Plan((placement,) * 3, (placement,))


def _is_factor(arg: Arg, partial: Arg, *, divides: bool) -> bool:
    """Return whether `arg` is a known finite tensor by which `partial` is scaled without growing."""
    if arg.value is None or not isinstance(arg.placement, Replicate) or arg.rank > partial.rank:
        return False
    if arg.rank and arg.shape != partial.shape and arg.elements != 1:
        return False
    if divides and "int" in arg.dtype:
        return False
    value = np.asarray(arg.value, np.float64) if np.asarray(arg.value).dtype.kind != "c" else np.asarray(arg.value)
    return bool(np.all(np.isfinite(value)) and (not divides or np.all(value != 0)))


def _target(args: tuple[Arg, ...]) -> tuple[Shard, int] | None:
    """Return the division of the result, and its number of dimensions."""
    index = widest(args)
    if index is None:
        return None
    out_rank = max(arg.rank for arg in args)
    placement = args[index].placement
    assert isinstance(placement, Shard)
    return placement.at(placement.axis + out_rank - args[index].rank), out_rank


def _aligned(arg: Arg, target: Shard, out_rank: int) -> Placement | None:
    """Return the placement of `arg` for a result with division `target`; None where it is not known."""
    axis = target.axis - (out_rank - arg.rank)
    if axis < 0:
        return REPLICATE
    assert arg.shape is not None
    if arg.shape[axis] == target.total:
        return target.at(axis)
    return REPLICATE if arg.shape[axis] == 1 else None
