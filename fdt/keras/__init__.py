"""One interface to Keras 3 and tf_keras. Each library is imported only when it is requested."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fdt.errors import CaptureError, NeedsReplica
from fdt.typing import Model, Optimizer, Variable

ApplyNow = Callable[[list[Any], list[Variable]], Any]  # Keras's original apply: (gradients, variables)
Apply = Callable[[ApplyNow, list[Any], list[Variable]], Any]


class Flavor(Protocol):
    """Keras 3 or tf_keras. Lists of variables have the same order in every process that builds the program."""

    name: str  # "keras" | "tf_keras"
    keras: Any  # the module

    # -- variables: no variable is in two lists, but `seeds` is a part of `non_trainable` ---------------------------
    def trainable(self, model: Model) -> list[Variable]:
        """Return the trainable variables."""

    def non_trainable(self, model: Model) -> list[Variable]:
        """Return the model's variables that are neither trainable nor of a metric."""

    def seeds(self, model: Model) -> list[Variable]:
        """Return the states of the random number generators."""

    def optimizers(self, model: Model) -> list[Optimizer]:
        """Return `model.optimizer`, then the optimizers that custom training steps keep as attributes."""

    def optimizer(self, model: Model) -> list[Variable]:
        """Return the variables of all optimizers: iterations, learning rates, slots, loss scales."""

    def metrics(self, model: Model) -> list[Variable]:
        """Return the variables of the metrics in the order of `model.metrics`, including the loss trackers."""

    # -- programs ---------------------------------------------------------------------------------------------------
    def refuse(self, model: Model) -> None:
        """Raise CaptureError for a model that cannot be sent to workers whatever it contains."""

    def compiled(self, model: Model) -> bool:
        """Return whether the model is compiled."""

    def steps_per_execution(self, model: Model) -> int:
        """Return the training steps of one call of the train function."""

    def whole_executions(self, model: Model, steps: int | None) -> int | None:
        """Return the steps that Keras takes where it is given a number of steps for an epoch."""

    def learned_steps(self, model: Model, before: int) -> int | None:
        """Return the steps that Keras gives the next epochs, if it takes those of a `fit` over data of unknown length.

        `before`: steps of the epoch before the `fit`, which just ended.
        """

    def restored(self, model: Model, steps: int, given: int) -> tuple[int, int]:
        """Return the epoch and the step at which Keras's loop begins, where it is `given` an epoch.

        BackupAndRestore may have restored others. `steps`: of an epoch; 0: unknown.
        """

    def set_steps_per_execution(self, model: Model, count: int) -> None:
        """Set the steps of one call; another number makes Keras trace its functions again."""

    def result(self, model: Model, logs: dict[str, float]) -> dict[str, float]:
        """Return Keras's report for a loop whose last step returned `logs`: the metrics' results, or those logs."""

    def built(self, model: Model) -> bool:
        """Return whether all variables of the model, the optimizers and the metrics exist."""

    def build(self, model: Model, spec: Any) -> None:
        """Create the missing variables as the first training step would. `spec`: (x, y, weights) of TensorSpecs."""

    def dumps(self, model: Model) -> tuple[bytes, list[Variable]]:
        """Pickle the built, compiled model by value, without the values of its variables; `pickling.loads` reads it.

        Returns:
            The pickles, and the script variables: those that the model's code refers to and no list above has.

        Raises:
            NeedsReplica: An attribute cannot be pickled.
        """

    def settings(self) -> dict[str, Any]:
        """Return the global settings that training depends on (float type, data format, dtype policy), as JSON."""

    def apply_settings(self, settings: dict[str, Any]) -> None:
        """Set the global settings that `settings` returned."""

    # -- training ---------------------------------------------------------------------------------------------------
    def replace_apply(self, optimizer: Optimizer, apply: Apply) -> contextlib.AbstractContextManager[None]:
        """Within the context, call `apply(original_apply, gradients, variables)` instead of the optimizer's own."""


def refuse_strategy(strategy: Any) -> None:
    """Raise CaptureError for a model of a tf.distribute strategy; NeedsReplica where the strategy has one device."""
    if strategy is None or type(strategy).__name__ == "_DefaultDistributionStrategy":
        return
    reason = f"the model was made in the scope of {type(strategy).__name__}"
    if type(strategy).__name__ in ("MirroredStrategy", "OneDeviceStrategy") and strategy.num_replicas_in_sync == 1:
        raise NeedsReplica(f"{reason}. Remove the scope, or use `--capture replica`", reason, trained=False)
    raise CaptureError(f"{reason}, which distributes the training itself. Remove the scope, or train with plain python")


def all_variables(flavor: Flavor, model: Model) -> list[Variable]:
    """Return the variables of a model, its optimizers and its metrics."""
    return [*flavor.trainable(model), *flavor.non_trainable(model), *flavor.optimizer(model), *flavor.metrics(model)]


def unique(variables: Sequence[Variable], *, without: Sequence[Variable] = ()) -> list[Variable]:
    """Return `variables` in order, each once, except those of `without`; compared by identity."""
    seen, found = {id(v) for v in without}, []
    for variable in variables:
        if id(variable) not in seen:
            seen.add(id(variable))
            found.append(variable)
    return found


@contextlib.contextmanager
def attribute(obj: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of `obj` within the context, bypassing `__setattr__`, which may track it."""
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


def is_of_keras(flavor: Flavor, model: Model, *names: str) -> bool:
    """Return whether methods of a model are all Keras's own, in its class and in the object."""
    kind, keras_kind = type(model), flavor.keras.Model
    return all(getattr(kind, name) is getattr(keras_kind, name) and name not in vars(model) for name in names)


def are_layers_built(model: Model) -> bool:
    """Return whether a model and all its layers have their variables."""
    return all(layer.built for layer in model._flatten_layers())


NAMES = ("keras", "tf_keras")


@functools.cache
def named(name: str) -> Flavor:
    """Return the flavor "keras" or "tf_keras"; import that library and never the other."""
    if name == "keras":
        from fdt.keras.keras3 import Keras3

        return Keras3()
    if name == "tf_keras":
        from fdt.keras.tf_keras import TfKeras

        return TfKeras()
    raise ValueError(f"a flavor must be one of {', '.join(NAMES)}. Received: {name!r}")


def flavor_of(model: Any) -> Flavor:
    """Return the flavor whose `Model` this is. Raises CaptureError when it is neither's."""
    for name in NAMES:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "Model") and isinstance(model, module.Model):
            return named(name)
    raise CaptureError(f"a model must be a keras.Model or a tf_keras.Model. Received: {type(model).__name__}")
