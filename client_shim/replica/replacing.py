"""Temporary replacement of attributes and table entries, without an import of TensorFlow."""

import contextlib
from collections.abc import Iterator
from typing import Any


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set `owner.name` to `value` until `stack` closes."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


@contextlib.contextmanager
def entry(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Within, `table[key]` is `value`."""
    before, table[key] = table[key], value
    try:
        yield
    finally:
        table[key] = before
