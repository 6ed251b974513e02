"""A run of a script, and one call of `fit` in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from client_shim.batch_hooks import batch_hooks
from client_shim.settings import Settings
from fdt.blobs import Blobs
from fdt.job import BatchHooks
from fdt.keras import Flavor
from fdt.report import Reporters
from fdt.rundir import RunDir

Original = Callable[..., Any]


@dataclass
class Run:
    """One run of a script: the engine it trains on and what has been asked of it. `client`: a TrainingClient.

    `directory`: where its checkpoints are. `instead`: called in place of training, with what training would be given
    (client_shim/inspect.py).
    """

    client: Any
    settings: Settings
    reporters: Reporters
    fits: int = 0
    busy: bool = False
    directory: RunDir | None = None
    instead: Callable[..., Any] | None = None

    @property
    def blobs(self) -> Blobs:
        blobs: Blobs = self.client.blobs
        return blobs

    @property
    def engine(self) -> str:
        return str(self.client.hello.engine)


@dataclass
class Call:
    """One call of `fit`: Keras's own function, the model, and the arguments by name, defaults filled in."""

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
