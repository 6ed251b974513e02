"""Random numbers of each rank's own that end in variables: noise of the script's train_step, layers or optimizer.

Every rank would add other noise, and the ranks' weights would be different from then on; in gradients, and in variables
that are averaged, the noise would be smaller than on one machine. Numbers that are drawn for each row, as dropout's
are, do not count: the rows are other ones on each rank. Nor do those that a branch or a loop draws or assigns.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from client_shim.script_code import of_library, script_code
from fdt.keras.variables import inner_optimizer, tensor_variable
from hfdt.exactness.fixed_draws import STATELESS, any_rows
from hfdt.exactness.gradient_pass import GradientPass
from hfdt.exactness.row_dependence import line_of_script
from replica.graph.flatten import RANDOM, WRITES, Flat, GraphNode, flatten


def own_draws(trainable: Any, found: GradientPass) -> list[str]:
    """Return type and line of the script's operations that draw such numbers: "RandomStandardNormal at train.py:7".

    Args:
        trainable: The model with its variables.
        found: The traced pass.
    """
    seeds, metrics = _handles(trainable.seeds), _handles(trainable.metrics)
    alike = _handles([*trainable.trainable, *trainable.non_trainable, *trainable.optimizer]) - seeds | metrics
    drawn = [*_added(found.traced, alike), *_drawn(found.traced.graph, alike, seeds | metrics, line_of_script)]
    optimizers = [inner_optimizer(each) for each in trainable.flavor.optimizers(trainable.model)]
    if any(not of_library(each) or script_code([vars(each)]) for each in optimizers):
        drawn += _drawn(_updates(found), alike, seeds, lambda _: "an optimizer")
    return list(dict.fromkeys(drawn))


def _handles(variables: Sequence[Any]) -> set[int]:
    return {id(tensor_variable(variable).handle) for variable in variables}


def _added(traced: Any, alike: set[int]) -> Iterator[str]:
    """Yield the draws that the script's code adds to gradients, behind backpropagation."""
    flat = flatten(traced.graph)
    handles = _arguments(traced.graph)
    gradients = tf.nest.flatten(traced.structured_outputs[0], expand_composites=True)
    count = sum(each is not None for each in gradients)
    by_script = _reached(flat, [n for n, _ in flat.outputs[:count]], lambda node: bool(line_of_script(node.op)))
    for number in sorted(by_script):
        if _is_own(flat, number, handles, alike):
            op = flat.nodes[number].op
            yield f"{op.type} at {line_of_script(op)}"


def _arguments(graph: Any) -> list[int | None]:
    """Return the id of the variable's handle for each argument of a graph; None for one that is no variable."""
    outer = {id(inner): id(handle) for handle, inner in graph.captures if handle.dtype == tf.resource}
    return [outer.get(id(tensor)) for tensor in graph.inputs]


def _updates(found: GradientPass) -> Any:
    """Trace the updates of a pass."""

    def update() -> None:
        for each in found.updates:
            each.apply([tf.zeros(v.shape, tensor_variable(v).dtype) for v in each.variables], each.variables)

    return tf.function(update, autograph=False).get_concrete_function().graph


def _drawn(graph: Any, alike: set[int], left_out: set[int], line_of: Callable[[Any], str]) -> Iterator[str]:
    """Yield the draws from which a graph computes what it assigns.

    Args:
        graph: The graph.
        alike: The ids of the handles of the variables that all ranks have alike; other ones are generators' states.
        left_out: The ids of the handles of the variables whose values do not count.
        line_of: Returns where an operation assigns; "" where that does not count.
    """
    flat = flatten(graph)
    handles = _arguments(graph)
    for node in flat.nodes:
        if node.argument is not None or not node.op.type.startswith(WRITES) or not (line := line_of(node.op)):
            continue
        variable = flat.nodes[node.inputs[0][0]].argument
        if variable is not None and handles[variable] in left_out:
            continue
        for number in _reached(flat, [n for n, _ in node.inputs[1:]]):
            if _is_own(flat, number, handles, alike):
                op = flat.nodes[number].op
                yield f"{op.type} at {line_of_script(op) or line}"


def _is_own(flat: Flat, number: int, handles: list[int | None], alike: set[int]) -> bool:
    """Return whether a node draws other numbers on each rank, but not for each row.

    TensorFlow's generator does, and a state that is not in `alike`: of a layer, of Keras's global generator.
    """
    node = flat.nodes[number]
    if node.argument is not None or any_rows(node.op.outputs[0]):
        return False
    if not node.op.type.startswith(STATELESS):
        return node.op.type in RANDOM
    arguments = (flat.nodes[n].argument for n in _reached(flat, [n for n, _ in node.inputs[1:]]))
    return any(argument is not None and handles[argument] not in (None, *alike) for argument in arguments)


def _reached(flat: Flat, start: list[int], goes_on: Callable[[GraphNode], bool] = lambda _: True) -> set[int]:
    """Return the nodes from which others are computed, with these; only those through which it `goes_on`."""
    seen, stack = set[int](), list(start)
    while stack:
        number = stack.pop()
        node = flat.nodes[number]
        if number not in seen and (node.argument is not None or goes_on(node)):
            seen.add(number)
            stack += [before for before, _ in node.inputs]
    return seen
