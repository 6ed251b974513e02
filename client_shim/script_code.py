"""Detection of the script's own code in a model."""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from client_shim.replica.steps import of_script
from fdt.keras import Flavor

_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins", "functools")
_FUNCTIONS = (FunctionType, MethodType)
_ITEMS = 10_000  # of a container that are read: a longer one is a vocabulary


def script_parts(model: Any) -> list[str]:
    """Return what runs code of the script in a step of a compiled model, as "Gate (train.py:7)"."""
    return list(dict.fromkeys(map(described, script_objects(model))))


def script_objects(model: Any) -> list[Any]:
    """Return the objects that run code of the script in a step of a compiled model.

    Layers, losses and metrics; functions and objects that layers hold, such as those of Lambda, activations and
    regularizers.
    """
    layers = list(model._flatten_layers())
    called = held_by([getattr(model, "loss", None), *with_inner(model.metrics)])
    own = [part for part in (*layers, *called) if _is_callable(part) and not of_library(part)]
    return [*own, *script_code(vars(layer) for layer in layers if of_library(layer))]


def script_code(held: Iterable[Any]) -> list[Any]:
    """Return the script's functions and callable objects among objects, and in those that they hold."""
    return [each for each in held_by(held) if _of_script(each)]


def update_objects(flavor: Flavor, model: Any) -> list[Any]:
    """Return the objects that run code of the script in an update: optimizers, schedules of learning rates."""
    optimizers = [getattr(each, "inner_optimizer", each) for each in flavor.optimizers(model)]
    return [*(each for each in optimizers if not of_library(each)), *script_code(map(vars, optimizers))]


def with_inner(metrics: Iterable[Any]) -> list[Any]:
    """Return metrics, and those within Keras's containers and within metrics of tf_keras."""
    return [each for metric in metrics for each in (metric, *getattr(metric, "metrics", ()))]


def of_library(obj: Any) -> bool:
    """Return whether Keras, TensorFlow or Python defines a class, a function, or the class of an object."""
    return str(_definition(obj).__module__).startswith(_LIBRARIES)


def described(obj: Any) -> str:
    """Return the name of a function, or of an object's class, with the line of its code: "Gate (train.py:7)"."""
    code = next(_codes(obj), None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else ""
    return f"{_definition(obj).__name__}{place}"


def held_by(objects: Iterable[Any]) -> Iterator[Any]:
    """Yield objects, then those that they hold, each once."""
    seen, remaining = set[int](), deque(objects)
    kept = list(remaining)  # an id is of one object for as long as that lives
    while remaining:
        obj = remaining.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        kept.append(obj)
        with contextlib.suppress(Exception):  # of the object's own __iter__, __getattribute__ or __class__
            remaining += _held(obj)
        yield obj


def _held(obj: Any) -> list[Any]:
    """Return the items of a container, and what a callable object calls: a wrapped function, a method's object."""
    if isinstance(obj, dict):
        return list(itertools.islice(obj.values(), _ITEMS))
    if isinstance(obj, (list, tuple, set, frozenset)):
        return list(itertools.islice(obj, _ITEMS))
    if not _is_callable(obj):
        return []
    called = [obj.func, obj.args, obj.keywords] if isinstance(obj, functools.partial) else []
    called += [obj.__self__] if isinstance(obj, MethodType) else []
    return [*called, *getattr(obj, "__dict__", {}).values()]


def _is_callable(obj: Any) -> bool:
    """Return whether an object is a function, or one with `__call__`; a class is neither."""
    return callable(obj) and not isinstance(obj, type)


def _of_script(obj: Any) -> bool:
    """Return whether a function, or a callable object's class, is one of the script's."""
    return _is_callable(obj) and not of_library(obj) and any(of_script(code.co_filename) for code in _codes(obj))


def _definition(obj: Any) -> Any:
    """Return a function or a class itself, a partial's function, and the class of another object."""
    while isinstance(obj, functools.partial):
        obj = obj.func
    return obj if isinstance(obj, type) or type(obj) in _FUNCTIONS else type(obj)


def _codes(obj: Any) -> Iterator[Any]:
    """Yield the code of a function, or that of the methods of an object's class and of the classes before Keras's."""
    definition = _definition(obj)
    classes = [each for each in definition.__mro__ if not of_library(each)] if isinstance(definition, type) else []
    functions = [definition] if not classes else [each for kind in classes for each in vars(kind).values()]
    yield from (each.__code__ for each in functions if type(each) in _FUNCTIONS and hasattr(each, "__code__"))
