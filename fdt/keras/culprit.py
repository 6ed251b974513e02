"""A search for the attribute of a model that cannot be pickled, starting from the object whose record failed."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Part = tuple[str, Any]  # the next element of the path, and the object there


class PickleRecord(NamedTuple):
    """An object's attributes, as fdt/keras/pickling.py writes them."""

    obj: Any
    state: dict[str, Any]
    finish: Callable[[Any, dict[str, Any]], None]
    parent: "PickleRecord | None"  # the record in which `obj` was found first; None: it is the model

    @property
    def label(self) -> str:
        """The model's class; another object's class and name; without a name, its parent's label and its class."""
        kind, name = type(self.obj).__name__, getattr(self.obj, "name", None)
        if self.parent is None:
            return kind
        return f"{kind} {name!r}" if isinstance(name, str) else f"{self.parent.label}: {kind}"


def find(
    model: Any,
    record: PickleRecord | None,
    fails: Callable[[Any, set[int]], bool],
    is_later: Callable[[Any], bool],
    *,
    repeats: bool,
) -> str:
    """Find the deepest attribute that fails by itself.

    Args:
        model: The object that is pickled.
        record: The record that failed; None where it was `model` itself, without its attributes.
        fails: Returns whether this part fails when the objects of these ids are left out.
        is_later: Returns whether this object's attributes are a record of their own, and so not part of the failed one.
        repeats: Whether an object may contain another of its class. Otherwise the search stops at the first of them.

    Returns:
        The path and the class of the object there: `Dense 'dense_3'.handle (TextIOWrapper)`.
    """
    path, obj = (type(model).__name__, model) if record is None else (record.label, record.obj)
    parts: Iterable[Part] = _attributes(record.state) if record is not None else [_class(model)]
    known, kinds = {id(obj)}, {type(obj)}
    while True:
        failing = ((name, part) for name, part in parts if id(part) not in known and fails(part, known))
        name, part = next(failing, ("", None))
        if not name or (type(part) in kinds and not repeats):
            return f"{path} ({type(obj).__name__})"
        path, obj = path + name, part
        known.add(id(obj))
        kinds.add(type(obj))
        parts = [_class(obj)] if is_later(obj) else _parts(obj)


def _parts(obj: Any) -> Iterator[Part]:
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
        yield from _attributes(getattr(obj, "__dict__", {}))
        yield _class(obj)


def _attributes(state: dict[str, Any]) -> Iterator[Part]:
    return ((f".{name}", value) for name, value in state.items())


def _class(obj: Any) -> Part:
    return f" (class {type(obj).__name__})", type(obj)


def _cells(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


__all__ = ["PickleRecord", "find"]
