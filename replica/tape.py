"""Gradient tapes of placed tensors: the zeros and ones that TensorFlow's C++ tape makes have a rank's local shape."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import backprop, composite_tensor_gradient, execute, gen_array_ops, pywrap_tfe, record
from fdt.errors import CaptureError
from fdt.patches import Patch
from fdt.typing import Tensor
from replica.convert import joined
from replica.placement import Shard
from replica.tensors import EagerTensor, place, unrecorded

FILLED = "_filled_by_tape"
FORWARD_MODE = (
    "forward-mode differentiation (tf.autodiff.ForwardAccumulator) of a divided batch is not supported. Received: one "
    "at {where}; use reverse mode, or train with plain python"
)
_accumulating: list[Any] = []


def patches(taken: Callable[[], None]) -> list[Patch]:
    """Return the replacements while a script runs. `taken` is called when a gradient is computed."""

    def gradient(original: Any, *args: Any, **kwargs: Any) -> Any:
        taken()
        return _gradient(original, *args, **kwargs)

    return [
        Patch(tf.GradientTape, "gradient", gradient),
        Patch(record, "record_operation", _record_operation),
        Patch(execute, "record_gradient", _record_gradient),
        Patch(tf.autodiff.ForwardAccumulator, "_push_accumulator", _push),
        Patch(tf.autodiff.ForwardAccumulator, "_pop_accumulator", _pop),
    ]


def refuse_forward_mode() -> None:
    """Raise CaptureError inside a ForwardAccumulator: TensorFlow makes tangents with the shapes of a rank's part."""
    if _accumulating:
        raise CaptureError(FORWARD_MODE.format(where=where()))


def _push(original: Any, accumulator: Any) -> None:
    original(accumulator)
    _accumulating.append(accumulator)


def _pop(original: Any, accumulator: Any) -> None:
    original(accumulator)
    _accumulating.remove(accumulator)


def install() -> Callable[[], None]:
    """Register the callbacks of the C++ tape; return a function that restores TensorFlow's own."""
    own = backprop._default_vspace
    pywrap_tfe.TFE_Py_RegisterVSpace(own._replace(zeros_fn=_zeros))
    pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient_function)

    def restore() -> None:
        pywrap_tfe.TFE_Py_RegisterVSpace(own)
        pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)

    return restore


def _zeros(shape: Any, dtype: Any) -> Any:
    """Return zeros for an output without a gradient, marked, since their shape is that of the rank's part."""
    made = backprop._zeros(shape, dtype)
    if made is not None:
        setattr(made, FILLED, True)
    return made


def _gradient_function(
    op: str, attrs: Any, count: int, inputs: Any, outputs: Any, gradients: Any, skip: Any, scope: Any
) -> Any:
    return backprop._gradient_function(op, attrs, count, inputs, outputs, _placed(gradients, outputs), skip, scope)


def _placed(gradients: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
    """Give zeros of the tape the placement of their output."""
    if outputs is None or not any(getattr(g, FILLED, False) for g in gradients):
        return gradients
    return [_like(g, o) if getattr(g, FILLED, False) else g for g, o in zip(gradients, outputs, strict=False)]


def _like(zeros: Tensor, output: Any) -> Tensor:
    if type(output) is not EagerTensor or not isinstance(output._placement, Shard):
        return zeros
    if type(zeros) is not EagerTensor:  # the gradient is being traced
        return tf.zeros(output._global_shape, zeros.dtype)
    with unrecorded():
        return place(gen_array_ops.identity(zeros), output._placement, output._global_shape)


def _record_operation(
    original: Any,
    op_type: Any,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    forward_function: Any = None,
) -> Any:
    """Record functions and custom gradients, whose backward functions also get zeros of the tape."""
    if any(type(t) is EagerTensor and isinstance(t._placement, Shard) for t in output_tensors):
        backward_function = _with_placed(backward_function, list(output_tensors))
    return original(op_type, output_tensors, input_tensors, backward_function, forward_function)


def _record_gradient(original: Any, op: Any, inputs: Any, attrs: Any, outputs: Any) -> None:
    """Record operations with all their outputs: the tape would drop those that no gradient reads, and their shapes."""
    if len(outputs) < 2 or not any(map(_is_sharded, outputs)):
        original(op, inputs, attrs, outputs)
        return

    def backward(*gradients: Any) -> Any:
        placed = _placed(gradients, outputs)
        found = backprop._gradient_function(op, attrs, len(inputs), inputs, outputs, placed, (), None)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    record.record_operation(op, list(outputs), list(inputs), backward)


def _with_placed(backward: Any, outputs: list[Any]) -> Any:
    @functools.wraps(backward)
    def call(*gradients: Any) -> Any:
        return backward(*_placed(gradients, outputs))

    return call


def _gradient(
    original: Any, tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Start from ones of the global shape; gradients that are computed together are replicated together."""
    targets = composite_tensor_gradient.get_flat_tensors_for_gradients(tf.nest.flatten(target))
    if output_gradients is None and any(map(_is_sharded, targets)):
        output_gradients = [tf.ones_like(t) if _is_sharded(t) else None for t in targets]
    gradients = original(tape, target, sources, output_gradients, *args, **kwargs)
    joined(tf.nest.flatten(gradients, expand_composites=True))
    return gradients


def _is_sharded(tensor: Any) -> bool:
    return type(tensor) is EagerTensor and isinstance(tensor._placement, Shard)
