"""Detection of plain attributes that callbacks change on an eagerly running model.

Workers hold the model as `fit` captured it, so they would not see such a change.
"""

from collections.abc import Iterator
from types import CodeType
from typing import Any

from fdt.errors import CaptureError

_PLAIN = (bool, int, float, str, type(None))


class ModelAttributes:
    """Plain attributes that the methods of a script's own model, layers and losses read, with their values at `fit`.

    Keras reads them in every step only with `run_eagerly`; otherwise it reads them once, when it traces.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        losses = [loss for loss in [getattr(model, "loss", None)] if hasattr(loss, "__dict__")]
        owners = [*model._flatten_layers(), *losses] if model.run_eagerly else []
        self._held = [(owner, name, vars(owner)[name]) for owner in owners for name in sorted(_read(owner))]

    def check(self) -> None:
        """Raise CaptureError if an attribute has been set to another value since this object was made."""
        for owner, name, held in self._held:
            now = vars(owner).get(name, held)
            if now is not held and (type(now) is not type(held) or now != held):
                what = "model" if owner is self._model else getattr(owner, "name", type(owner).__name__)
                raise CaptureError(
                    f"what a training step reads must be a variable if callbacks change it. Received: {what}.{name} = "
                    f"{now!r} ({type(owner).__name__}), {held!r} when fit began; make it a "
                    "keras.Variable(..., trainable=False) and assign it"
                )


def _read(owner: Any) -> set[str]:
    """Return the names of the owner's plain public attributes that methods of the script's own classes mention."""
    plain = {name for name, value in vars(owner).items() if type(value) in _PLAIN and not name.startswith("_")}
    own = [cls for cls in type(owner).__mro__ if not cls.__module__.startswith(("keras.", "tf_keras.", "tensorflow."))]
    codes = [
        function.__code__
        for cls in own
        for name, function in vars(cls).items()
        if name != "__init__" and hasattr(function, "__code__")
    ]
    return plain & {name for code in codes for name in _names(code)}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
