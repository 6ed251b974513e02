"""Temporary replacement of functions, attributes and table entries. Only a wrapped function needs TensorFlow."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """A replacement of `owner.name` by `function(original, ...)`. `owner`: a module, a class, or an object."""

    owner: Any
    name: str
    function: Callable[..., Any]


@contextlib.contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Install `patches` within the context and undo them in reverse. Inherited attributes become inherited again."""
    with contextlib.ExitStack() as stack:
        for patch in patches:
            original = getattr(patch.owner, patch.name)
            own = vars(patch.owner).get(patch.name, _MISSING)
            _set(patch.owner, patch.name, _wrapped(patch.function, original))
            stack.callback(_restore, patch.owner, patch.name, own)
        yield


_MISSING = object()


def _wrapped(function: Callable[..., Any], original: Any) -> Any:
    import tensorflow as tf

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type) or not hasattr(owner, "__dict__") or type(owner).__module__ == "builtins":
        setattr(owner, name, value)
    else:
        object.__setattr__(owner, name, value)  # bypasses Keras's tracking of attributes


def _restore(owner: Any, name: str, own: Any) -> None:
    if own is not _MISSING:
        _set(owner, name, own)
    elif isinstance(owner, type):
        delattr(owner, name)
    else:
        object.__delattr__(owner, name)


def replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set `owner.name` to `value` until `stack` closes."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


@contextlib.contextmanager
def at_imports() -> Iterator[Callable[[str, Callable[[Any], None]], None]]:
    """Yield `when(module, then)`: it calls `then` with the module once that is imported, within the context alone."""
    import wrapt  # a command that runs no script does not need it

    active = [True]

    def when(module: str, then: Callable[[Any], None]) -> None:
        wrapt.register_post_import_hook(lambda found: then(found) if active else None, module)

    try:
        yield when
    finally:
        active.clear()


@contextlib.contextmanager
def entry(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Within the context, `table[key]` is `value`."""
    before, table[key] = table[key], value
    try:
        yield
    finally:
        table[key] = before
