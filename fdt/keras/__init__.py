"""One interface to Keras 3 and tf_keras. Each library is imported only when it is requested."""

import functools
import sys
from typing import Any

from fdt.errors import CaptureError
from fdt.keras.flavor import Flavor

__all__ = ["Flavor", "flavor_of", "named"]

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
