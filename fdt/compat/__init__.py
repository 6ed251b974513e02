"""The private names of TensorFlow, Keras and tf_keras that this project uses.

No other package imports them (ruff's TID251). Where releases differ, the difference is here. A module imports one
library: `import_hooks` none, `keras3` and `tf_keras` the one of its name, the others TensorFlow.
tests/single/test_compat_hooks.py states what is relied on.
"""

import importlib
from typing import Any


def of(flavor: str) -> Any:
    """Return the module of the private names of `flavor`, "keras" or "tf_keras"; import that library alone."""
    return importlib.import_module("fdt.compat.keras3" if flavor == "keras" else "fdt.compat.tf_keras")
