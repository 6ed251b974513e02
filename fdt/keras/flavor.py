"""One face for Keras 3 and tf_keras: what capture, workers and servers need to know of a model."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from fdt.errors import CaptureError

Array = np.ndarray
Variable = Any  # a framework variable: has .shape, .assign, .name
Model = Any
Optimizer = Any
ApplyNow = Callable[[list[Any], list[Variable]], Any]  # Keras's own apply: (gradients, variables)
Apply = Callable[[ApplyNow, list[Any], list[Variable]], Any]


class Flavor(Protocol):
    """A library that defines `Model`. Lists of variables have one order in every process that builds the program."""

    name: str  # "keras" | "tf_keras"
    keras: Any  # the module

    # -- variables: no variable is in two lists, but seeds is a part of non_trainable -----------------------------
    def trainable(self, model: Model) -> list[Variable]: ...

    def non_trainable(self, model: Model) -> list[Variable]: ...

    def seeds(self, model: Model) -> list[Variable]:
        """State of the random number generators."""
        ...

    def optimizers(self, model: Model) -> list[Optimizer]:
        """`model.optimizer` first, then those that custom training steps keep as attributes."""
        ...

    def optimizer(self, model: Model) -> list[Variable]:
        """Variables of all optimizers: iterations, learning rates, slots, loss scales."""
        ...

    def metrics(self, model: Model) -> list[Variable]:
        """In the order of `model.metrics`, the loss trackers among them."""
        ...

    def read(self, variables: Sequence[Variable]) -> list[Array]:
        """Copies of the values."""
        ...

    def write(self, variables: Sequence[Variable], arrays: Sequence[Array]) -> None:
        """Raises CaptureError naming the first variable whose shape does not fit."""
        ...

    # -- programs ---------------------------------------------------------------------------------------------------
    def refuse(self, model: Model) -> None:
        """Raises CaptureError for a model that cannot be carried to workers whatever it holds."""
        ...

    def compiled(self, model: Model) -> bool: ...

    def steps_per_execution(self, model: Model) -> int: ...

    def set_steps_per_execution(self, model: Model, count: int) -> None:
        """Another number makes Keras trace its functions anew."""
        ...

    def result(self, model: Model, logs: dict[str, float]) -> dict[str, float]:
        """What Keras would report for a loop whose last step gave `logs`: the metrics' results, or those logs."""
        ...

    def built(self, model: Model) -> bool:
        """Do all variables exist: the model's, the optimizer's, the metrics'?"""
        ...

    def build(self, model: Model, spec: Any) -> None:
        """Create what `built` misses, as the first training step would; `spec`: (x, y, weights) of TensorSpecs."""
        ...

    def dumps(self, model: Model) -> bytes:
        """The built, compiled model by value, without the values of its variables. Raises CaptureError."""
        ...

    def loads(self, data: bytes | memoryview) -> Model: ...

    def settings(self) -> dict[str, Any]:
        """Global settings that training depends on (float type, data format, dtype policy), JSON-able."""
        ...

    def apply_settings(self, settings: dict[str, Any]) -> None: ...

    # -- training ---------------------------------------------------------------------------------------------------
    def replace_apply(self, optimizer: Optimizer, apply: Apply) -> contextlib.AbstractContextManager[None]:
        """Within, the optimizer's updates go to `apply(original_apply, gradients, variables)` instead."""
        ...


def write(variables: Sequence[Variable], arrays: Sequence[Array]) -> None:
    """Assign `arrays` to `variables`. Raises CaptureError when number or shape differ; nothing is written then."""
    if len(variables) != len(arrays):
        raise CaptureError(f"a state must hold one array per variable. Received: {len(arrays)} for {len(variables)}")
    for variable, array in zip(variables, arrays, strict=True):
        if not variable.shape.is_compatible_with(array.shape):
            name = getattr(variable, "path", variable.name)
            raise CaptureError(
                f"a state must fit the variables it is for. Received: shape {array.shape} for {name} {variable.shape}"
            )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def refuse_strategy(strategy: Any) -> None:
    """Raises CaptureError when a model belongs to a tf.distribute strategy of its own."""
    if strategy is not None and type(strategy).__name__ != "_DefaultDistributionStrategy":
        raise CaptureError(
            "a model must not be made under a tf.distribute strategy: its workers are the strategy. "
            f"Received: {type(strategy).__name__}; take the scope out, or train with plain python"
        )


def unique(variables: Sequence[Variable], *, without: Sequence[Variable] = ()) -> list[Variable]:
    """`variables` in order, each once, those of `without` left out; by identity."""
    seen, found = {id(v) for v in without}, []
    for variable in variables:
        if id(variable) not in seen:
            seen.add(id(variable))
            found.append(variable)
    return found


@contextlib.contextmanager
def attribute(obj: Any, name: str, value: Any) -> Iterator[None]:
    """Give `obj` an attribute of its own, past any `__setattr__` that tracks, and take it back."""
    missing = object()
    before = obj.__dict__.get(name, missing)
    obj.__dict__[name] = value
    try:
        yield
    finally:
        if before is missing:
            obj.__dict__.pop(name, None)
        else:
            obj.__dict__[name] = before
