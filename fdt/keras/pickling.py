"""A model as bytes: its Python objects as they are, its variables as shapes.

Keras's own configs forget what scripts do: constructor arguments that are layers or functions, attributes set later,
`compile` overridden, a `get_config` that misses an argument. So the object graph itself is pickled: classes and
functions of the script by value (cloudpickle), variables as placeholders that the job's state fills, and a few things
of the framework by what they are made of. What a flavor of Keras needs beside that it adds as `Reduce` functions.
"""

import contextlib
import io
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np

from fdt.errors import CaptureError
from fdt.keras import natives
from fdt.keras.annotated import annotation_globals

Reduce = Callable[[Any, "ModelPickler"], Any]  # NotImplemented: not mine

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_afterwards = threading.local()  # .calls: what `loads` runs once all objects are whole


class ModelPickler(cloudpickle.Pickler):
    """Pickles a model. `carried`: ids of the variables whose values travel apart, as the job's state."""

    def __init__(self, file: io.BytesIO, reduces: Sequence[Reduce], carried: frozenset[int]) -> None:
        super().__init__(file, protocol=5)
        self._reduces = (*reduces, _reduce_plain, natives.reduce_native)
        self._carried = carried

    def value_of(self, variable: Any) -> Any:
        """The value a placeholder of `variable` starts from; None (zeros) when the state carries it."""
        return None if id(variable) in self._carried else np.asarray(variable)

    def reducer_override(self, obj: Any) -> Any:
        for reduce in self._reduces:
            reduced = reduce(obj, self)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: Any) -> Any:
        make, arguments, (state, slots), *rest = super()._dynamic_function_reduce(func)
        slots["__globals__"].update(annotation_globals(func))
        return make, arguments, (state, slots), *rest


def dumps(obj: Any, reduces: Sequence[Reduce], carried: frozenset[int] = frozenset()) -> bytes:
    """Pickle `obj`. Raises CaptureError naming the attribute that can't be."""
    try:
        return _dump(obj, reduces, carried)
    except CaptureError:
        raise
    except Exception as error:
        where = _culprit(obj, reduces, carried)
        raise CaptureError(
            f"everything the model refers to must be picklable; {where} is not. Received: {_first_line(error)}. "
            "Keep it out of the model's classes and functions, or train with plain python"
        ) from error


def loads(data: bytes | memoryview) -> Any:
    """Undo `dumps`."""
    with _collecting() as calls:
        obj = pickle.loads(data)
        for call in calls:
            call()
    return obj


def afterwards(call: Callable[[], None]) -> None:
    """Run `call` when the objects being loaded are whole (ids renewed, lists filled)."""
    _afterwards.calls.append(call)


def by_state(obj: Any, state: dict[str, Any], finish: Callable[[Any, dict[str, Any]], None]) -> Any:
    """The reduction `new object of the class, then finish(obj, state)`: safe for objects that refer to themselves.

    Attributes are sorted, so that those set anew by a `fit` do not change the bytes of the next one's program.
    """
    return new, (type(obj),), dict(sorted(state.items())), None, None, finish


def new(cls: Any) -> Any:
    """An object of `cls` that no `__init__` has seen."""
    try:
        return cls.__new__(cls)
    except TypeError:  # a __new__ that wants arguments
        return object.__new__(cls)


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """Give `obj` its attributes, past any `__setattr__` that tracks."""
    obj.__dict__.update(state)


@contextlib.contextmanager
def _collecting() -> Iterator[list[Callable[[], None]]]:
    outer = getattr(_afterwards, "calls", None)
    _afterwards.calls = []
    try:
        yield _afterwards.calls
    finally:
        _afterwards.calls = outer


def _dump(obj: Any, reduces: Sequence[Reduce], carried: frozenset[int]) -> bytes:
    out = io.BytesIO()
    ModelPickler(out, reduces, carried).dump(obj)
    return out.getvalue()


def _reduce_plain(obj: Any, _: ModelPickler) -> Any:
    """What Python cannot pickle and what means nothing elsewhere."""
    if isinstance(obj, weakref.ref):
        target = obj()
        return (_dead_reference, ()) if target is None else (weakref.ref, (target,))
    if type(obj) in (weakref.WeakKeyDictionary, weakref.WeakSet, weakref.WeakValueDictionary):
        return type(obj), ()  # caches
    if isinstance(obj, _LOCKS):
        return type(obj) if obj.__class__ is _LOCKS[1] else threading.Lock, ()
    if isinstance(obj, threading.local):
        return _local_like, (type(obj),)
    return NotImplemented


class _Gone:
    pass


def _dead_reference() -> Any:
    return weakref.ref(_Gone())


def _local_like(cls: type) -> Any:
    return cls()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


class _Probe(ModelPickler):
    """Leaves out what is already known to hold the culprit: a part fails by what is its own."""

    known: set[int]

    def persistent_id(self, obj: Any) -> Any:
        return "known" if id(obj) in self.known else None


def _culprit(obj: Any, reduces: Sequence[Reduce], carried: frozenset[int]) -> str:
    """The deepest attribute that fails by itself, by its path from the model."""
    path, known = type(obj).__name__, {id(obj)}
    while True:
        found = _failing_part(obj, known, reduces, carried)
        if found is None:
            return f"{path} ({type(obj).__name__})"
        name, obj = found
        known.add(id(obj))
        path += name


def _failing_part(obj: Any, known: set[int], reduces: Sequence[Reduce], carried: frozenset[int]) -> "_Part | None":
    for name, part in _parts(obj):
        if id(part) in known:
            continue
        probe = _Probe(io.BytesIO(), reduces, carried)
        probe.known = known
        try:
            probe.dump(part)
        except Exception:
            return name, part
    return None


_Part = tuple[str, Any]


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif callable(obj) and hasattr(obj, "__code__"):
        names = obj.__code__.co_names
        yield from ((f" (global {n!r})", obj.__globals__[n]) for n in names if n in obj.__globals__)
        yield from zip([f" (variable {n!r})" for n in obj.__code__.co_freevars], _cells(obj), strict=False)
    elif isinstance(obj, type):
        yield from ((f".{name}", value) for name, value in vars(obj).items() if callable(value))
    else:
        yield from ((f".{name}", value) for name, value in getattr(obj, "__dict__", {}).items())
        if type(obj).__module__ == "__main__":
            yield f" (class {type(obj).__name__})", type(obj)


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


__all__ = ["ModelPickler", "Reduce", "afterwards", "by_state", "dumps", "loads", "new", "set_state"]
