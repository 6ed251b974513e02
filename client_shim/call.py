"""One call of `fit`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from client_shim.batch_hooks import batch_hooks
from fdt.job import BatchHooks
from fdt.keras import Flavor

Original = Callable[..., Any]


@dataclass
class FitCall:
    """Keras's own function, the model, and the arguments by name, defaults filled in."""

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

    def local(self) -> Any:
        """Keras's own, here."""
        return self.original(self.model, **self.arguments)


def _flat(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple)):
        return [flat for callback in callbacks for flat in _flat(callback)]
    return [callbacks]
