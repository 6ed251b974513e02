"""Gradients of variables in a TensorFlow 1 graph, passed through Python where the graph takes them.

`Optimizer.minimize`, `compute_gradients` and `tf.gradients` all call one function of TensorFlow's, which is patched.
The
graph continues (clipping, accumulating, fetching, `apply_gradients`) with the arrays that Python returns. Where an
engine sums over ranks in Python, these are gradients of the global batch.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import gradients_util, ops
from fdt.errors import CaptureError
from fdt.patches import replace
from fdt.typing import Array

NAME = "fdt_gradients"
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_PYTHON = ("PyFunc", "PyFuncStateless")
SECOND_ORDER = "second-order gradients of variables cannot be divided. Received: tf.gradients at {where}"
INSIDE = "gradients inside tf.cond or tf.while_loop cannot be divided. Received: tf.gradients at {where}"

# (node, arrays as in `GradientNode.sparse`) -> arrays of the same dtypes
Pass = Callable[["GradientNode", Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True, eq=False)
class GradientNode:
    """The gradients that one call takes.

    Attributes:
        number: Counts the calls in the script's order, which is the same on every rank.
        variables: Names of the operations that hold the variables, in order.
        sparse: For each array: "values" for an embedding's rows, "indices" for their indices, "" for a dense gradient.
        inputs: The graph's own gradients.
        outputs: The tensors that Python returns for them.
    """

    number: int
    variables: Sequence[str]
    sparse: Sequence[str]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


class Gradients:
    """The gradients that the script takes in its graphs (tf.gradients), each of them passed through Python.

    Args:
        passed: Called as `passed(node, arrays)` when a session run computes gradients, in a thread of TensorFlow's.
    """

    def __init__(self, passed: Pass) -> None:
        self._passed = passed
        self._of: weakref.WeakKeyDictionary[Any, dict[str, GradientNode]] = weakref.WeakKeyDictionary()
        self._count = 0
        self._within = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within the context, TensorFlow's gradient function is patched."""
        with contextlib.ExitStack() as stack:
            helper = functools.partial(self._taken, gradients_util._GradientsHelper)
            replace(stack, gradients_util, "_GradientsHelper", helper)
            replace(stack, ops.Graph, "_as_graph_def", _without_python(self, ops.Graph._as_graph_def))
            yield

    def of(self, operation: Any) -> GradientNode | None:
        """Return the gradients that pass through `operation`; None for other operations."""
        return self._of.get(operation.graph, {}).get(operation.name) if operation.type in _PYTHON else None

    def _taken(self, original: Any, ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return d ys / d xs, in place of TensorFlow's own function."""
        graph = tf.compat.v1.get_default_graph()
        listed = _listed(xs)
        variables = [i for i, x in enumerate(listed) if _is_variable(x)]
        if self._within or not of_sessions(graph) or not variables:
            return original(ys, xs, *args, **kwargs)
        self._check(graph, _listed(ys))
        gradients = original(ys, xs, *args, **kwargs)
        wanted = [i for i in variables if gradients[i] is not None]
        if not wanted:
            return gradients
        self._within = True
        try:
            names = [str(listed[i].op.name) for i in wanted]
            passed = self._through_python(graph, names, [gradients[i] for i in wanted])
        finally:
            self._within = False
        for i, gradient in zip(wanted, passed, strict=True):
            gradients[i] = gradient
        return gradients

    def _check(self, graph: Any, ys: Sequence[Any]) -> None:
        if graph._get_control_flow_context() is not None:
            raise CaptureError(INSIDE.format(where=where()))
        waiting, seen = [y.op for y in ys if hasattr(y, "op")], set()
        while waiting and self._of.get(graph):
            operation = waiting.pop()
            if self.of(operation) is not None:
                raise CaptureError(SECOND_ORDER.format(where=where()))
            if operation not in seen:
                seen.add(operation)
                waiting += [tensor.op for tensor in operation.inputs]

    def _through_python(self, graph: Any, names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        flat, sparse = _flat(gradients)
        number = self._count
        self._count += 1
        made: list[GradientNode] = []
        with tf.device("/cpu:0"):
            passing = functools.partial(self._pass, made)
            outputs = tf.numpy_function(passing, flat, [t.dtype for t in flat], stateful=True, name=f"{NAME}_{number}")
        outputs = outputs if isinstance(outputs, list) else [outputs]
        for output, tensor, kind in zip(outputs, flat, sparse, strict=True):
            # the number of rows is open: all ranks' rows together
            output.set_shape([None, *tensor.shape[1:]] if kind else tensor.shape)
        made.append(GradientNode(number, names, sparse, flat, outputs))
        self._of.setdefault(graph, {})[outputs[0].op.name] = made[0]
        return _like(gradients, outputs)

    def _pass(self, made: Sequence[GradientNode], *arrays: Array) -> Sequence[Array]:
        return [a.astype(b.dtype, copy=False) for a, b in zip(self._passed(made[0], arrays), arrays, strict=True)]


def of_sessions(graph: Any) -> bool:
    """Return whether sessions run this graph, so that it is not a function's."""
    return not tf.executing_eagerly() and type(graph) is ops.Graph


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _is_variable(x: Any) -> bool:
    return isinstance(x, tf.Variable) or getattr(getattr(x, "op", None), "type", "") in _VARIABLES


def _flat(gradients: Sequence[Any]) -> tuple[list[Any], list[str]]:
    flat, sparse = [], []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            flat += [gradient.values, gradient.indices]
            sparse += ["values", "indices"]
        else:
            flat.append(gradient)
            sparse.append("")
    return flat, sparse


def _like(gradients: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    rest, made = iter(outputs), []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            made.append(tf.IndexedSlices(next(rest), next(rest), gradient.dense_shape))
        else:
            made.append(next(rest))
    return made


def _without_python(gradients: Gradients, original: Any) -> Any:
    """Return an `_as_graph_def` that replaces the Python calls by identities: a saved graph is the script's own."""

    @functools.wraps(original)
    def as_graph_def(graph: Any, *args: Any, **kwargs: Any) -> Any:
        made, version = original(graph, *args, **kwargs)
        ours = gradients._of.get(graph, {})
        for node in made.node if ours else ():
            if node.name in ours:
                types = list(node.attr["Tin"].list.type)
                node.op = "IdentityN"
                for name in ("Tin", "Tout", "token"):
                    node.attr.pop(name, None)
                node.attr["T"].list.type.extend(types)
        return made, version

    return as_graph_def
