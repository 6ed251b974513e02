"""Skippable regions of code that is used for several models, optimizers or settings: one region for each of them.

A worker that skips a step returns what an earlier run gave. That run must have been one for the same model, so a region
is found by the objects that its code receives, besides the code. Arrays are data and never belong to the key.
"""

import enum
import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from client_shim.replica.bindings import contents

_FEW = 8  # a value that takes on more, such as the number of the step, is data
_LONG = 64  # only the first items of a container are read
_DEPTH = 3  # levels of containers, of attributes and of closures
_DATA = (np.ndarray, tf.Tensor, tf.data.Dataset, tf.data.Iterator, tf.TypeSpec, ModuleType, type)
_NAMED = (bool, np.bool_, str, bytes, type(None), enum.Enum)
_NUMBERS = (int, float, complex, np.number)
_TRACKED = tf.__internal__.tracking.Trackable

T = TypeVar("T")


@dataclass
class _Use(Generic[T]):
    region: T
    held: list[Any]  # weak references to the objects of its key
    times: int = 0


class Variants(Generic[T]):
    """The regions of one piece of code. `make` returns a new one; each lives as long as the objects of its key."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._uses: dict[Any, _Use[T]] = {}
        self._seen: dict[Any, set[Any]] = {}  # by name: its plain values
        self._brief: Counter[Any] = Counter()  # by name: how many of its objects, one after another, had a single use
        self._data: set[Any] = set()  # names whose values are others in each call
        self.last: T | None = None

    def of(self, given: Mapping[Any, Any], *, numbers: bool) -> T:
        """Return the region for the objects and plain values in `given`.

        Args:
            given: The values that the code receives, by their names.
            numbers: Whether numbers belong to the key, as long as there are few. In eager code they are positions of a
                batch more often than settings.
        """
        parts: list[Any] = []
        held: list[tuple[Any, Any]] = []
        for name, value in given.items():
            parts.append((self._plain(name, value, numbers), *self._objects(name, value, held)))
        key = (*given, *parts)
        if key not in self._uses:
            known = weakref.ref(self)
            refs = [weakref.ref(each, functools.partial(_drop, known, key, name)) for name, each in held]
            self._uses[key] = _Use(self._make(), refs)
        self._uses[key].times += 1
        self.last = self._uses[key].region
        return self.last

    def _plain(self, name: Any, value: Any, numbers: bool) -> Any:
        """Return a plain value with its type, for 1 is True; None for other values, and where a name has had many."""
        if name in self._data or not isinstance(value, (*_NAMED, *_NUMBERS) if numbers else _NAMED):
            return None
        plain = type(value), value
        self._seen.setdefault(name, set()).add(plain)
        if len(self._seen[name]) <= _FEW:
            return plain
        self._is_data(name)
        return None

    def _objects(self, name: Any, value: Any, held: list[tuple[Any, Any]]) -> list[Any]:
        if name in self._data:
            return []
        found: list[Any] = []
        parts = list(_parts(value, found))
        held.extend((name, each) for each in found)
        return parts

    def _is_data(self, name: Any) -> None:
        self._data.add(name)
        self._uses.clear()  # their results are as large as the model

    def drop(self, key: Any, name: Any, few: int = _FEW) -> None:
        """Forget a region: an object of its key is gone, which was in the value of `name`.

        `few`: the module's own is gone where the interpreter ends.
        """
        use = self._uses.pop(key, None)
        if use is not None:
            self._brief[name] = self._brief[name] + 1 if use.times == 1 else 0
            if self._brief[name] > few:
                self._is_data(name)


def _drop(known: "weakref.ref[Variants[Any]]", key: Any, name: Any, _: Any) -> None:
    variants = known()
    if variants is not None:
        variants.drop(key, name)


def _parts(value: Any, held: list[Any], depth: int = 0) -> Iterator[Any]:
    """Yield what identifies the models, optimizers, variables and functions in `value`; add the objects to `held`.

    A container, an object of the script's, and a closure stand for what they hold: they may be new ones in each call.
    """
    if isinstance(value, (*_NAMED, *_NUMBERS)) or (isinstance(value, _DATA) and not _is_variable(value)):
        return
    if isinstance(value, FunctionType):
        yield _Code(value.__code__)
    elif not isinstance(value, (list, tuple, dict)) and _is_tracked(value):
        held.append(value)
        yield id(value)
        return
    if depth < _DEPTH:
        for inner in itertools.islice(_inside(value), _LONG):
            yield from _parts(inner, held, depth + 1)


class _Code:
    """A function's code, compared by identity: TensorFlow copies none, and equal ones may be two functions' code."""

    def __init__(self, code: CodeType) -> None:
        self._code = code  # held, so that its id is not used again

    def __hash__(self) -> int:
        return id(self._code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and other._code is self._code


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable) or hasattr(type(value), "assign_add")


def _is_tracked(value: Any) -> bool:
    """Return whether the object is a variable, or holds variables by TensorFlow's or Keras's own means."""
    return (isinstance(value, _TRACKED) and not hasattr(value, "_python_function")) or _is_variable(value)


def _inside(value: Any) -> Iterator[Any]:
    """Yield what the container, function or object holds."""
    if isinstance(value, dict):
        return iter(list(value.values()))
    if isinstance(value, (list, tuple)):
        return iter(value)
    if isinstance(value, functools.partial):
        return iter((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, MethodType):
        return iter((value.__self__, value.__func__))
    if isinstance(value, _TRACKED):  # a tf.function
        return iter((value._python_function,))
    if isinstance(value, FunctionType):
        return iter(contents(value))
    return iter(list(getattr(value, "__dict__", {}).values()))
