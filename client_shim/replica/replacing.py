"""Methods of TensorFlow's and Keras's classes, replaced while a script runs."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf


class Replacement(NamedTuple):
    """`owner.name` becomes `function(original, ...)`."""

    owner: Any
    name: str
    function: Callable[..., Any]


@contextlib.contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name, function in replacements:
            original = getattr(owner, name)
            wrapped = functools.wraps(original)(functools.partial(function, original))
            setattr(owner, name, _as_method(wrapped))
            stack.callback(setattr, owner, name, original)
        yield


def _as_method(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)
