"""Compiled functions of a batch and tensors, and the variables to which they assign."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.compat.eager import BaseResourceVariable, ResourceVariable
from fdt.keras.variables import tensor_variable
from fdt.ops import call_flat
from fdt.trainable import Trainable
from fdt.typing import Tensor

_ASSIGNS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")


@contextlib.contextmanager
def assignments() -> Iterator[set[int]]:
    """Yield the ids of the tf.Variables that are assigned within the context, traced or executed."""
    assigned: set[int] = set()

    def noting(original: Any) -> Any:
        def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
            assigned.add(id(self))
            return original(self, *args, **kwargs)

        return assign

    # TensorFlow redefines some of these methods in the subclass.
    owners = (BaseResourceVariable, ResourceVariable)
    methods = [(owner, name, vars(owner)[name]) for owner in owners for name in _ASSIGNS if name in vars(owner)]
    for owner, name, original in methods:
        setattr(owner, name, noting(original))
    try:
        yield assigned
    finally:
        for owner, name, original in methods:
            setattr(owner, name, original)


class ByShape:
    """`function(batch, tensors)`, compiled as the model's own step would be; eager if the model runs eagerly."""

    def __init__(self, function: Callable[[Any, list[Tensor]], Any], trainable: Trainable) -> None:
        model = trainable.model
        self._eager, self._function = bool(model.run_eagerly), function
        self._concrete: dict[tuple[Any, ...], Any] = {}  # by shapes and types of a batch
        if not self._eager:
            if trainable.flavor.name == "keras":  # Keras 3 traces its own step without autograph
                function = tf.autograph.experimental.do_not_convert(function)
            jit = bool(model.jit_compile) or None
            self._function = tf.function(function, jit_compile=jit, reduce_retracing=True)

    def trace(self, batch: Any, tensors: list[Any]) -> None:
        """Compile for these tf.TypeSpecs."""
        if not self._eager:
            self._function.get_concrete_function(batch, tensors)  # type: ignore[attr-defined]

    def __call__(self, batch: Any, tensors: list[Tensor]) -> Any:
        if self._eager:
            return self._function(batch, tensors)
        flat = [t for t in tf.nest.flatten(batch, expand_composites=True) if t is not None]
        key = _outline(batch), *((t.dtype, *t.shape) for t in flat)
        if key not in self._concrete:
            self._concrete[key] = self._function.get_concrete_function(batch, tensors)  # type: ignore[attr-defined]
        return call_flat(self._concrete[key], [*flat, *tensors])


def _outline(batch: Any) -> Any:
    """Return the structure of a batch: batches of different structure may have the same flat list."""
    if isinstance(batch, dict):
        return tuple((name, _outline(batch[name])) for name in sorted(batch))
    return tuple(map(_outline, batch)) if isinstance(batch, (tuple, list)) else type(batch)


class Assign:
    """Writes variables with one compiled function per choice of variables."""

    def __init__(self) -> None:
        self._functions: dict[tuple[int, ...], Any] = {}

    def __call__(self, variables: Sequence[Any], values: Sequence[Tensor]) -> None:
        key = tuple(map(id, variables))
        if key not in self._functions:
            targets = [tensor_variable(v) for v in variables]
            self._functions[key] = tf.function(lambda given: assign(targets, given), autograph=False)
        self._functions[key](list(values))


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> None:
    """Assign each value to its variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value, read_value=False)
