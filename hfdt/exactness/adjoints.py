"""The adjoints of the script's sums and means: the derivatives of the loss by the elements that each of them adds up.

A sum over samples which happens to be 0 for the rows at hand adds nothing to gradients, so these do not tell it from a
mean: a penalty of values out of a range, or a rare label's loss. Its adjoints do. An element's adjoint is 1 in a sum
and 1/n in a mean of n elements, whatever the element is. So the totals of the adjoints of rows tell which it is: those
of ranks add up to the whole batch's with the ranks' weights in a mean, and without them in a sum.

An addition in a branch, a loop or a function has its adjoints in another graph, and may not run at first. So it is
recorded with the totals of a sum over rows, or those of a mean if it is one or is divided by the number of rows.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import ops
from fdt.ops import reached
from fdt.patches import Patch, patched
from fdt.typing import Array, Tensor
from hfdt.exactness.inlined import inlining
from hfdt.exactness.script_lines import line_of_script

_REDUCTIONS = ("Sum", "Mean", "L2Loss", "SegmentSum", "UnsortedSegmentSum")
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
_BY_FIRST = ("Sum", "Mean", "Reshape", "BroadcastTo", "Tile")  # a shape or an axis is their second input
_NOISE = 1e-6  # adjoints whose absolute values add up to less may be rounding errors


@dataclass
class Addition:
    """A sum or mean in the script, or several of the same tensor.

    `adjoints`: of what each adds up, with the shapes of their inputs; of one `within` another graph, their total.
    """

    line: str
    within: bool
    adjoints: list[Tensor] = field(default_factory=list)


@dataclass
class Backward:
    """A backward pass.

    Attributes:
        graph: The step's graph.
        of_sum: The total of the adjoints of a sum over this rank's rows, for one in another graph.
        of_mean: That of a mean.
        additions: By type and inputs.
        results: The gradients that it returned.
    """

    graph: Any
    of_sum: Tensor
    of_mean: Tensor
    additions: dict[tuple[str, str], Addition] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def note(self, op: Any, kind: str, gradient: Any, found: Any) -> None:
        """Record an operation of this kind. `gradient`: the adjoints of its result; `found`: those of its inputs."""
        # the tape keeps the inputs that the gradient reads: of segments, their numbers
        inputs = op.inputs if kind in _PRODUCTS else [op.inputs["Segment" in kind]]
        if getattr(gradient, "graph", None) is self.graph:
            self._add(kind, inputs, lambda: _adjoint(op, kind, gradient, found))
        elif _over_rows(op, kind, gradient.shape):
            divided = _is_divided(getattr(gradient, "values", gradient))  # of rows that are gathered: IndexedSlices
            total = self.of_mean if kind == "Mean" or divided else self.of_sum
            self._add(kind, inputs, lambda: total, within=True)

    def _add(self, kind: str, inputs: Sequence[Any], adjoint: Callable[[], Tensor], *, within: bool = False) -> None:
        """Record an addition of this kind if the script made it. TensorFlow tells inputs of it, not the operation."""
        names = [tensor.name for tensor in inputs]
        made = (op for op in inputs[0].consumers() if op.type == kind and {*names} <= {t.name for t in op.inputs})
        line = next(filter(None, map(line_of_script, made)), "")
        if line and ((found := adjoint()).dtype.is_floating or found.dtype.is_complex):
            key = kind, f"{line} {found.name}" if within else " ".join(names)
            self.additions.setdefault(key, Addition(line, within)).adjoints.append(found)


@contextlib.contextmanager
def recorded(of_sum: Tensor = 1.0, of_mean: Tensor = 1.0) -> Iterator[list[Backward]]:
    """Record the backward passes of a step that this thread traces within the context; nothing of an eager step.

    Args:
        of_sum: `Backward.of_sum`.
        of_mean: `Backward.of_mean`.
    """
    done, of_sum, of_mean = list[Backward](), tf.cast(of_sum, tf.float64), tf.cast(of_mean, tf.float64)
    if tf.executing_eagerly():  # ranks may be threads, which patches would reach
        yield done
        return
    graph, thread, running = tf.compat.v1.get_default_graph(), threading.get_ident(), list[Backward]()

    def gradient(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        running.append(Backward(graph, of_sum, of_mean))
        try:
            found = original(*args, **kwargs)
        finally:
            done.append(running.pop())
        done[-1].results.extend(tf.nest.flatten(found, expand_composites=True))
        return found

    def lookup(original: Callable[..., Any], registry: Any, name: str) -> Any:
        function = original(registry, name)
        recording = running and threading.get_ident() == thread and registry is ops.gradient_registry
        return differentiated(name, function) if recording and name in (*_REDUCTIONS, *_PRODUCTS) else function

    def differentiated(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(op: Any, *gradients: Any) -> Any:
            found = function(op, *gradients)
            running[-1].note(op, name, gradients[0], found)
            return found

        return call

    taken = [Patch(owner, name, gradient) for owner, name in ((tf.GradientTape, "gradient"), (tf, "gradients"))]
    with patched([*taken, Patch(type(ops.gradient_registry), "lookup", lookup), inlining()]):
        yield done


def _over_rows(op: Any, name: str, result: Any) -> bool:
    """Return whether an operation with a result of this shape adds up rows, whose number a trace does not fix."""
    addend = op.inputs["Segment" in name]  # a tape within does not keep the addends of segments
    given = addend.shape
    if not any(op.type == "Placeholder" and op.outputs[0].dtype != tf.resource for op in _behind(addend, _inputs)):
        return False  # computed of variables alone
    axes = tf.get_static_value(op.inputs[1]) if name in ("Sum", "Mean") and given.rank else None
    if axes is not None:
        return given[0] is None and 0 in np.ravel(axes) % given.rank
    return given.rank is None or (None in given.as_list() and result.rank is not None and None not in result.as_list())


def _is_divided(adjoint: Tensor) -> bool:
    """Return whether an adjoint is computed from the number of rows, in a tensor's shape: it is divided by it."""
    return any(op.type in ("Shape", "Size") for op in _behind(adjoint, _scaling))


def _inputs(op: Any) -> Sequence[Tensor]:
    return tuple(op.inputs)


def _scaling(op: Any) -> Sequence[Tensor]:
    """Return the inputs that scale an operation's result; of a shape's dimension, none unless it may be the first."""
    if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape":
        begin, sizes = tf.get_static_value(op.inputs[1]), op.inputs[0].shape[0]
        return () if begin is not None and sizes and begin[0] % sizes else _inputs(op)
    given = _inputs(op)
    return {"Fill": given[1:], "OnesLike": ()}.get(op.type, given[:1] if op.type in _BY_FIRST else given)


def _behind(tensor: Tensor, inputs: Callable[[Any], Sequence[Tensor]]) -> list[Any]:
    """Return the operations that a tensor is computed by, through captures of outer graphs and `inputs` of each."""

    def onward(ref: Any) -> list[Any]:
        return [each.ref() for each in _captured(ref.deref()) or inputs(ref.deref().op)]

    return [ref.deref().op for ref in reached([tensor.ref()], onward) if not _captured(ref.deref())]


def _captured(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of an outer graph that a placeholder stands for, in a list; empty if there is none."""
    captures = getattr(tensor.graph, "captures", ()) if tensor.op.type == "Placeholder" else ()
    return [outer for outer, inner in captures if inner is tensor and hasattr(outer, "graph")]


def _adjoint(op: Any, name: str, gradient: Tensor, found: Any) -> Tensor:
    """Return the adjoints of an operation's addends; for a product of matrices, numbers of the same total.

    `gradient`: the adjoints of its result; `found`: those of its inputs. The addends of a product of matrices are
    products of elements.
    """
    if name == "L2Loss":
        return tf.ones_like(op.inputs[0]) * gradient
    if name in _REDUCTIONS:
        return tf.nest.flatten(found)[0]
    return gradient * tf.cast(_addends(op, name), gradient.dtype)


def _addends(op: Any, name: str) -> Tensor:
    """Return how many products of elements each element of a product of matrices adds up."""
    if name != "Einsum":
        flag, axes = ("transpose_a", (1, 0)) if name == "MatMul" else ("adj_x", (-1, -2))
        return tf.shape(op.inputs[0], tf.int64)[axes[op.get_attr(flag)]]
    terms, _, result = tf.compat.as_str(op.get_attr("equation")).partition("->")
    sizes: dict[str, Tensor] = {}
    for term, tensor in zip(terms.split(","), op.inputs, strict=True):
        front, _, back = term.partition("...")
        shape = tf.shape(tensor, tf.int64)
        sizes.update((label, shape[i]) for i, label in enumerate(front))
        sizes.update((label, shape[i - len(back)]) for i, label in enumerate(back))
    added = (size for label, size in sizes.items() if label not in result)
    return tf.reduce_prod([tf.constant(1, tf.int64), *added])


def behind(passes: Iterable[Backward], gradients: Iterable[Any]) -> list[Addition]:
    """Return the additions of the passes of which `gradients` are made, in the same order on all ranks; within, first.

    A pass before these has another purpose: its results may be an input of the model.
    """
    owners = {id(result): id(each) for each in passes for result in each.results if result is not None}
    flat = [t for t in tf.nest.flatten(list(gradients), expand_composites=True) if t is not None]
    used = set[int]().union(*(_made_of(tensor, owners) for tensor in flat))
    kept = [each.additions for each in passes if id(each) in used]
    found = [additions[key] for additions in kept for key in sorted(additions)]
    return sorted(found, key=lambda addition: not addition.within)


def _made_of(tensor: Tensor, owners: Mapping[int, int]) -> set[int]:
    """Return the passes of whose results the script computes a tensor; none where it also computes it of the batch.

    A sum whose gradients are divided by the number of rows is a mean.
    """

    def onward(ref: Any) -> list[Any]:
        each = ref.deref()
        if id(each) in owners or not hasattr(each, "graph"):
            return []
        branches = [getattr(each.op, name, None) for name in ("_true_graph", "_false_graph")]
        results = [graph.outputs[each.value_index] for graph in branches if graph is not None]
        return [t.ref() for t in results or _captured(each) or each.op.inputs]

    found = [ref.deref() for ref in reached([tensor.ref()], onward)]
    given = [each for each in found if hasattr(each, "graph") and each.op.type == "Placeholder" and not _captured(each)]
    return set() if any(g.dtype != tf.resource for g in given) else {owners[id(t)] for t in found if id(t) in owners}


def totals(additions: Iterable[Addition]) -> list[Tensor]:
    """Return the sums of the adjoints and of their absolute values, float64 [additions, 2]; empty without additions."""
    wide = [[_as_real(adjoint) for adjoint in each.adjoints] for each in additions]
    sums = [[tf.add_n([tf.reduce_sum(f(a)) for a in each]) for f in (tf.identity, tf.abs)] for each in wide]
    return [tf.stack(sums)] if sums else []


def _as_real(adjoint: Tensor) -> Tensor:
    """Return adjoints as float64; of complex ones, a linear function."""
    parts = [tf.math.real(adjoint), tf.math.imag(adjoint)] if adjoint.dtype.is_complex else [adjoint]
    return tf.add_n([tf.cast(part, tf.float64) for part in parts])


def over_ranks(sums: Tensor, *weights: Tensor) -> Tensor:
    """Return what ranks add up, float64 [additions, weights, 2]: their `totals` by each weight.

    Args:
        sums: The `totals` of this rank.
        weights: Its weight in the exchange, and the one that another reading of the loss would give it, float64
            scalars; 0 for a rank without rows, which adds nothing.
    """
    return tf.stack([tf.math.multiply_no_nan(sums, each) for each in weights], 1)


def first_misread(ours: Tensor, theirs: Tensor, tolerance: float) -> int:
    """Return the number, from 1, of the first addition that the reading of the loss does not fit; 0 if none is.

    Its totals are the whole batch's by the other reading's weights, and are not by those of the exchange. Others say
    nothing: an addition of what ranks do not divide, or of rows that are padded to other lengths.

    Args:
        ours: The sums of `over_ranks` of all ranks.
        theirs: Those of the whole batch.
        tolerance: The largest relative difference of equal numbers.
    """
    pairs = zip(np.asarray(ours), np.asarray(theirs), strict=False)
    for number, ((weighted, otherwise), (whole, _)) in enumerate(pairs, 1):
        if not _same(weighted, whole, tolerance) and _same(otherwise, whole, tolerance):
            return number
    return 0


def _same(ours: Array, theirs: Array, tolerance: float) -> bool:
    return bool(np.max(np.abs(ours - theirs)) <= tolerance * (float(theirs[1]) + _NOISE))
