"""Where a graph's gradients of variables are taken, they pass through Python.

All ways to them end in one function of TensorFlow's: `Optimizer.minimize`, `compute_gradients`, `tf.gradients`. What is
done with them afterwards (clipping, accumulating, fetching, `apply_gradients`) is done with what Python gave back, so
with the gradient of the whole batch where an engine adds the ranks' there.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util

from client_shim.replica.replacing import replace
from client_shim.replica.steps import where
from fdt.errors import CaptureError

NAME = "fdt_gradients"
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_PYTHON = ("PyFunc", "PyFuncStateless")
SECOND_ORDER = "gradients of gradients of variables are not divided. Received: tf.gradients at {where}"
INSIDE = "gradients within tf.cond or tf.while_loop are not divided. Received: tf.gradients at {where}"

Array = Any
# arrays as in `GradientNode.sparse`, back of the same types
Pass = Callable[["GradientNode", Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True, eq=False)
class GradientNode:
    """Gradients taken by one call. `number`: in the order in which the script takes them, the same on every rank.
    `variables`: names of the operations that hold what they are taken of, in order.

    `sparse`: for each array that is passed, is it an embedding's rows ("values"), their "indices", or a whole one ("")?
    `inputs`: the graph's own gradients. `outputs`: what comes of them.
    """

    number: int
    variables: Sequence[str]
    sparse: Sequence[str]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


class Gradients:
    """All that were taken. `passed(taken, arrays)` is called where a run computes them, in a thread of TensorFlow's."""

    def __init__(self, passed: Pass) -> None:
        self._passed = passed
        self._of: weakref.WeakKeyDictionary[Any, dict[str, GradientNode]] = weakref.WeakKeyDictionary()
        self._count = 0
        self._within = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            helper = functools.partial(self._taken, gradients_util._GradientsHelper)
            replace(stack, gradients_util, "_GradientsHelper", helper)
            replace(stack, ops.Graph, "_as_graph_def", _without_python(self, ops.Graph._as_graph_def))
            yield

    def of(self, operation: Any) -> GradientNode | None:
        """What passes through `operation`, if it is one of ours."""
        return self._of.get(operation.graph, {}).get(operation.name) if operation.type in _PYTHON else None

    def _taken(self, original: Any, ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of TensorFlow's own: d ys / d xs."""
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
            output.set_shape([None, *tensor.shape[1:]] if kind else tensor.shape)  # rows: the ranks' together
        made.append(GradientNode(number, names, sparse, flat, outputs))
        self._of.setdefault(graph, {})[outputs[0].op.name] = made[0]
        return _like(gradients, outputs)

    def _pass(self, made: Sequence[GradientNode], *arrays: Array) -> Sequence[Array]:
        return [a.astype(b.dtype, copy=False) for a, b in zip(self._passed(made[0], arrays), arrays, strict=True)]


def of_sessions(graph: Any) -> bool:
    """Is it a graph that sessions run: not a function's?"""
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
    """A graph that is saved or shown is the script's own: there the gradients pass through unchanged."""

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
