"""One call of `fit`: the model, the bound arguments and the callbacks."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from client_shim.callbacks import batch_hooks
from fdt.job import BatchHooks
from fdt.keras import Flavor, flavor_of

Original = Callable[..., Any]


@dataclass
class FitCall:
    """One call of `fit`.

    Attributes:
        original: Keras's own `fit` function.
        model: The model that `fit` was called on.
        arguments: All arguments by name, defaults filled in.
        flavor: The Keras that the model belongs to: Keras 3 or tf_keras.
        callbacks: The callbacks as one flat list.
        hooks: What the callbacks read of single steps.
    """

    original: Original
    model: Any
    arguments: dict[str, Any]
    flavor: Flavor
    callbacks: list[Any] = field(init=False)
    hooks: BatchHooks = field(init=False)

    def __post_init__(self) -> None:
        given = self.arguments["callbacks"]
        inner = getattr(given, "callbacks", given)  # a CallbackList
        self.callbacks = _flat(inner)
        self.hooks = batch_hooks(self.callbacks)

    @classmethod
    def of(cls, original: Original, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "FitCall":
        """Return the call `model.fit(*args, **kwargs)`."""
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        bound.apply_defaults()
        arguments, flavor = dict(list(bound.arguments.items())[1:]), flavor_of(model)
        for name in ("steps_per_epoch", "validation_steps"):
            arguments[name] = flavor.whole_executions(model, arguments[name])
        return cls(original, model, arguments, flavor)

    @property
    def steps_per_epoch(self) -> int:
        """The steps that `fit` was given for an epoch; 0 for the whole data (None, or tf_keras's -1)."""
        return max(self.arguments["steps_per_epoch"] or 0, 0)

    def local(self) -> Any:
        """Run Keras's own `fit` in this process."""
        return self.original(self.model, **self.arguments)


def _flat(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return [flat for callback in callbacks for flat in _flat(callback)]
    return [callbacks]


def trimmed(batch: Any) -> Any:
    """Return `batch` without trailing Nones: (x, y, None) becomes (x, y)."""
    while isinstance(batch, tuple) and len(batch) > 1 and batch[-1] is None:
        batch = batch[:-1]
    return batch


def without_nothing(spec: Any) -> Any:
    """Return a batch as training steps receive it: (x, y, None) becomes (x, y); a bare x stays as it is."""
    return trimmed(tuple(spec)) if isinstance(spec, (tuple, list)) else spec
