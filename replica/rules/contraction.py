"""Rules of products that sum over shared dimensions: matrix products, einsum, gradients of filters and biases."""

import string
from collections.abc import Sequence

from replica.placement import PARTIAL, REPLICATE, Placement, Shard
from replica.plan import OpCall, Plan, any_partial, keeping, rule, widest


@rule("MatMul")
def mat_mul(call: OpCall) -> Plan | None:
    """Keep a division of rows or columns; a division of the summed dimension gives a Partial."""
    left = "km" if call.attrs.get("transpose_a") else "mk"
    right = "nk" if call.attrs.get("transpose_b") else "kn"
    return contracted(call, (left, right), "mn")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_mat_mul(call: OpCall) -> Plan | None:
    """Divide as MatMul does, with leading batch dimensions, which may broadcast."""
    batch = max(arg.rank for arg in call.args) - 2
    names = string.ascii_lowercase[:batch]
    left = "ZY" if call.attrs.get("adj_x") else "YZ"
    right = "XZ" if call.attrs.get("adj_y") else "ZX"
    labels = [names[batch - (arg.rank - 2) :] + own for arg, own in zip(call.args, (left, right), strict=True)]
    return contracted(call, labels, names + "YX")


@rule("Einsum")
def einsum(call: OpCall) -> Plan | None:
    """Divide any equation without an ellipsis or a repeated label within one input."""
    equation = call.text("equation").replace(" ", "")
    left, arrow, out = equation.partition("->")
    labels = left.split(",")
    if not arrow or "." in equation or any(len(set(each)) != len(each) for each in [*labels, out]):
        return None
    return contracted(call, labels, out)


def contracted(call: OpCall, labels: Sequence[str], out: str) -> Plan | None:
    """Divide every input along the label of the largest divided input's divided dimension.

    Args:
        call: The call.
        labels: For each input, one letter per dimension.
        out: The letters of the output; missing ones are summed over.
    """
    index = widest(call.args)
    if index is None or any_partial(call.args):
        return None
    target = call.args[index].placement
    assert isinstance(target, Shard)
    label = labels[index][target.axis]
    inputs: list[Placement] = []
    for arg, letters in zip(call.args, labels, strict=True):
        axis = letters.find(label)
        if axis >= 0 and (arg.shape or ())[axis] == target.total:
            inputs.append(target.at(axis))
        elif axis < 0 or (arg.shape or ())[axis] == 1:
            inputs.append(REPLICATE)
        else:
            return None
    if label not in out and REPLICATE in (p for p, ls in zip(inputs, labels, strict=True) if label in ls):
        return None
    return Plan(tuple(inputs), (target.at(out.index(label)) if label in out else PARTIAL,))


@rule("BiasAdd", "BiasAddGrad")
def bias_add(call: OpCall) -> Plan | None:
    """Keep a division of any dimension but the channels; the gradient sums over these dimensions."""
    placement = call.args[0].placement
    channels = 1 if call.text("data_format", "NHWC").startswith("NC") else call.args[0].rank - 1
    if not isinstance(placement, Shard) or placement.axis == channels or any_partial(call.args):
        return None
    return keeping(call, PARTIAL if call.op == "BiasAddGrad" else placement)


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def filter_gradient(call: OpCall) -> Plan | None:
    """Sum over the rows of the input and of the output's gradient.

    The depthwise kernel leaves its output uninitialized where there are no rows (TensorFlow 2.21).
    """
    rows = [call.args[0].placement, call.args[2].placement]
    shards = [p for p in rows if isinstance(p, Shard) and p.axis == 0]
    if not shards or any_partial(call.args) or (call.op.startswith("Depthwise") and 0 in shards[0].sizes):
        return None
    return Plan((shards[0], REPLICATE, shards[0]), (PARTIAL,))
