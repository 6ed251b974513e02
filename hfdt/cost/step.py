"""The step of a captured `fit`, traced and timed in this process, for several numbers of rows.

Activations are the tensors of the forward pass, most of which live until the backward pass has read them. They are
found in the traced graph, and their sizes are its static shapes. Nothing is executed for it.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from client_shim.inspect import compiled_step, fastest
from fdt import ops
from fdt.data.source import cut_batch
from fdt.data.source import rows as rows_of
from fdt.environment import bound_to_share, cores
from fdt.errors import UserError
from fdt.keras.variables import tensor_variable, variables_of_slots
from fdt.trainable import Trainable
from hfdt.cost.estimate import ModelBytes, TracedStep

BACKWARD = "gradient_tape/"  # the name scope of a tape's operations
ALIASES = {"Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims"}
NOT_MADE = {"ReadVariableOp", "Placeholder", "Const", "VarHandleOp"}
OWN_MEMORY = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "PartitionedCall"}
OWN_MEMORY |= {"StatefulPartitionedCall", "TensorListReserve", "TensorListStack", "EmptyTensorList"}


def model_bytes(trainable: Trainable) -> ModelBytes:
    """Return the bytes of a model's variables."""

    def total(variables: Sequence[Any]) -> int:
        return sum(ops.nbytes(tensor_variable(v)) for v in variables)

    optimizer = getattr(trainable.model, "optimizer", None)
    slot_of = variables_of_slots(optimizer, trainable.trainable) if optimizer is not None else {}
    slots = [v for v in trainable.optimizer if id(v) in slot_of]
    weights = total([*trainable.trainable, *trainable.non_trainable])
    return ModelBytes(weights, total(trainable.trainable), total(slots))


def is_shardable(trainable: Trainable) -> bool:
    """Return whether --shard-optimizer can divide the optimizer."""
    from hfdt.worker.sharded_optimizer import check_elementwise

    try:
        check_elementwise(trainable)
    except UserError:
        return False
    return True


def traced_steps(model: Any, trainable: Trainable, batch: Any, most: int) -> list[TracedStep]:
    """Trace and time the step of the whole batch, and that of its first 1/n.

    Args:
        model: The compiled model.
        trainable: Its variables. They have their values again at the end.
        batch: A global batch.
        most: The largest n; a smaller one if the batch has fewer rows.
    """
    rows = int(rows_of(batch))
    parts = [1] + ([min(most, rows)] if rows > 1 else [])
    with bound_to_share(0, cores()):  # on one core
        return [traced_step(model, trainable, batch, n) for n in parts]


def traced_step(model: Any, trainable: Trainable, batch: Any, parts: int) -> TracedStep:
    """Trace and time the step of the first 1/`parts` of a batch, on the cores of this process."""
    mine, _ = cut_batch(batch, 0, parts)
    step = compiled_step(model)
    with trainable.restored():
        activations, unknown = _activations(step.get_concrete_function(mine).graph)
        seconds = fastest(functools.partial(step, mine))
    return TracedStep(int(rows_of(batch)) // parts, activations, unknown, seconds)


def _activations(graph: Any) -> tuple[int | None, str]:
    """Return the most bytes of the forward pass's tensors that live at one time; None and a reason if unknown.

    A tensor lives from its operation to its last reader, in the order in which the operations were traced.
    """
    operations = graph.get_operations()
    while operations and BACKWARD not in operations[-1].name:  # updates of weights and metrics
        operations.pop()
    if not operations:
        return None, "the step has no gradient tape"
    backward = _backward(operations)
    last: dict[Any, int] = {}
    for i, op in enumerate(operations):
        for owner in map(_owner, op.inputs):
            if owner is not None and owner.op not in backward:
                last[owner.ref()] = i
    changes, place = [0] * (len(operations) + 1), {op: i for i, op in enumerate(operations)}
    for ref, end in last.items():
        tensor = ref.deref()
        unknown = _unknown(tensor)
        if unknown:
            return None, f"{tensor.op.name} ({tensor.op.type}) {unknown}"
        size = tensor.shape.num_elements() * tensor.dtype.size
        changes[place[tensor.op]] += size
        changes[end + 1] -= size
    return max(itertools.accumulate(changes)), ""


def _backward(operations: Sequence[Any]) -> set[Any]:
    """Return the operations of gradient tapes, and all that follow from them."""
    found: set[Any] = set()
    for op in operations:
        if BACKWARD in op.name or any(tensor.op in found for tensor in op.inputs):
            found.add(op)
    return found


def _unknown(tensor: Any) -> str:
    if tensor.op.type in OWN_MEMORY:
        return "is a loop or a function, which keeps tensors of its own"
    if tensor.dtype in (tf.variant, tf.resource, tf.string):
        return f"makes a value of type {tensor.dtype.name}"
    return "" if tensor.shape.is_fully_defined() else f"has no fixed shape: {tensor.shape}"


def _owner(tensor: Any) -> Any:
    """Return the tensor whose memory `tensor` shares; None where that is a variable, an argument or a constant."""
    while tensor.op.type in ALIASES and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return None if tensor.op.type in NOT_MADE else tensor
