"""Detection of random numbers that differ between ranks and reach variables: noise of a train_step or an optimizer.

Every rank would add other noise, and the ranks' weights would be different from then on; in gradients, and in variables
that are averaged, the noise would be smaller than on one machine. Numbers that are drawn for each row, as dropout's
are, do not count: the rows are other ones on each rank. A branch or a loop counts as a whole.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from client_shim.script_code import update_objects
from fdt.keras.variables import tensor_variable
from hfdt.exactness.fixed_draws import STATELESS, alike_on_ranks, any_rows, handles
from hfdt.exactness.gradient_pass import GradientPass
from hfdt.exactness.script_lines import line_of_script
from replica.graph.flatten import RANDOM, Flat, flatten, function_graph, functions_of, written_by

_KEYS = "StatelessRandomGet"  # operations that make a key and a counter of a seed, which draws take


def own_draws(trainable: Any, found: GradientPass) -> list[str]:
    """Return type and line of the script's operations that draw such numbers: "RandomStandardNormal at train.py:7".

    Args:
        trainable: The model with its variables.
        found: The traced pass.
    """
    alike, seeds = alike_on_ranks(trainable), handles(trainable.seeds)
    step = _Traced.of(found.traced.graph, alike)
    gradients = tf.nest.flatten(found.traced.structured_outputs[0], expand_composites=True)
    drawn = list(_added(step, sum(each is not None for each in gradients)))
    drawn += _assigned(step, seeds | handles(trainable.metrics), line_of_script)
    if update_objects(trainable.flavor, trainable.model):
        drawn += _assigned(_Traced.of(_updates(found), alike), seeds, lambda _: "an optimizer")
    return list(dict.fromkeys(drawn))


class _Traced(NamedTuple):
    """A traced graph.

    Attributes:
        flat: Its operations.
        variables: The id of the variable's handle for each argument; None for one that is no variable.
        draws: By node, the operation that draws other numbers on each rank, but not for each row.
    """

    flat: Flat
    variables: list[int | None]
    draws: dict[int, Any]

    @classmethod
    def of(cls, graph: Any, alike: set[int]) -> "_Traced":
        outer = {id(inner): id(handle) for handle, inner in graph.captures if handle.dtype == tf.resource}
        flat, variables = flatten(graph), [outer.get(id(tensor)) for tensor in graph.inputs]
        generators = {i for i, v in enumerate(variables) if v is not None and v not in alike}  # their states
        return cls(flat, variables, dict(_draws(flat, generators)))


def _added(traced: _Traced, gradients: int) -> Iterator[str]:
    """Yield the draws that the script's code adds to the first `gradients` outputs, behind backpropagation."""
    nodes, outputs = traced.flat.nodes, [number for number, _ in traced.flat.outputs[:gradients]]
    for number in sorted(traced.flat.behind(outputs, lambda node: bool(line_of_script(node.op)))):
        if op := traced.draws.get(number):
            yield f"{op.type} at {line_of_script(op) or line_of_script(nodes[number].op)}"


def _updates(found: GradientPass) -> Any:
    """Trace the updates of a pass."""

    def update() -> None:
        for each in found.updates:
            each.apply([tf.zeros(v.shape, tensor_variable(v).dtype) for v in each.variables], each.variables)

    return tf.function(update, autograph=False).get_concrete_function().graph


def _assigned(traced: _Traced, left_out: set[int], line_of: Callable[[Any], str]) -> Iterator[str]:
    """Yield the draws from which a graph computes what it assigns.

    Args:
        traced: The graph.
        left_out: The ids of the handles of the variables whose values do not count.
        line_of: Returns where an operation assigns; "" where that does not count.
    """
    nodes = traced.flat.nodes
    for place, node in enumerate(nodes):
        if node.argument is not None or not (line := line_of(node.op)):
            continue
        written = {nodes[number].argument for number, _ in written_by(node)}
        if all(each is not None and traced.variables[each] in left_out for each in written):
            continue  # also where nothing is written
        for number in (place, *traced.flat.behind([n for n, _ in node.inputs])):
            if op := traced.draws.get(number):
                yield f"{op.type} at {line_of_script(op) or line}"


def _draws(flat: Flat, generators: set[int]) -> Iterator[tuple[int, Any]]:
    """Yield nodes and the operations by which they draw other numbers on each rank, but not for each row.

    TensorFlow's generator does, and a state of a layer's or of Keras's global generator: one of these arguments.
    """
    for number, node in enumerate(flat.nodes):
        for op in _operations(node.op) if node.argument is None else ():
            stateless = op.type.startswith(STATELESS) and not op.type.startswith(_KEYS)
            if not (stateless or op.type in RANDOM) or any_rows(op.outputs[0]):
                continue
            seed = flat.behind([n for n, _ in node.inputs])
            if not stateless or any(flat.nodes[n].argument in generators for n in seed):
                yield number, op


def _operations(op: Any) -> Iterator[Any]:
    """Yield an operation and those of the functions that it may call."""
    yield op
    for name in functions_of(op):
        for inner in function_graph(op.graph, name).get_operations():
            yield from _operations(inner)
