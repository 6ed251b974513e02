"""What a script finds in a module or a class, replaced for a while. TensorFlow is not needed: it may come later."""

import contextlib
from collections.abc import Iterator
from typing import Any


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """`owner.name` is `value` until `stack` closes."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


@contextlib.contextmanager
def entry(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """`table[key]` is `value` meanwhile."""
    before, table[key] = table[key], value
    try:
        yield
    finally:
        table[key] = before
