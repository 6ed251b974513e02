"""What a script finds in a module or a class, replaced for a while. TensorFlow is not needed: it may come later."""

import contextlib
from typing import Any


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """`owner.name` is `value` until `stack` closes."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
