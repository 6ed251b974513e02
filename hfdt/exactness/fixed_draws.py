"""Detection of random rows that are drawn by a fixed seed: every rank would draw the same numbers, for other rows.

A seed that is a number, or is computed from the number of updates, is such a seed. The states of a model's generators
differ between ranks (RankProgram.load), and so do the seeds of TensorFlow's random operations (HfdtWorker), so these
draw numbers of their own, and a seed that is drawn by them, too.
"""

from collections.abc import Iterable
from typing import Any

from fdt.keras.variables import tensor_variable
from fdt.ops import reached
from hfdt.exactness.script_lines import line_of_script
from replica.graph.flatten import RANDOM

STATELESS = (
    "StatelessRandom",
    "StatelessTruncatedNormal",
    "StatelessParameterizedTruncatedNormal",
    "StatelessMultinomial",
)


def fixed_draws(trainable: Any, traced: Any) -> list[str]:
    """Return type and line of the script's operations that draw such numbers: "StatelessRandomNormalV2 at train.py:7".

    Args:
        trainable: The model with its variables.
        traced: The traced step, of any number of rows.
    """
    alike = alike_on_ranks(trainable)
    own = {id(inner) for outer, inner in traced.graph.captures if id(outer) not in alike}
    own |= {id(t) for op in traced.graph.get_operations() if op.type in RANDOM for t in op.outputs}
    found = []
    for op in traced.graph.get_operations():
        if op.type.startswith(STATELESS) and any_rows(op.outputs[0]) and not _reached(op) & own:
            line = line_of_script(op)
            found += [f"{op.type} at {line}"] if line else []
    return found


def alike_on_ranks(trainable: Any) -> set[int]:
    """Return the ids of the handles of the variables that all ranks have alike: all but the generators' states."""
    groups = (trainable.trainable, trainable.non_trainable, trainable.optimizer, trainable.metrics)
    return handles(variable for group in groups for variable in group) - handles(trainable.seeds)


def handles(variables: Iterable[Any]) -> set[int]:
    """Return the ids of the handles by which a graph captures variables."""
    return {id(tensor_variable(variable).handle) for variable in variables}


def any_rows(tensor: Any) -> bool:
    """Return whether a tensor of a traced step may have a row for each of a batch."""
    return tensor.shape.rank is None or (tensor.shape.rank > 0 and tensor.shape[0] is None)


def _reached(op: Any) -> set[int]:
    """Return the ids of the tensors that the seed of a draw is computed from; its first input is the shape."""
    found = reached((t.ref() for t in op.inputs[1:]), lambda ref: [t.ref() for t in ref.deref().op.inputs])
    return {id(ref.deref()) for ref in found}
