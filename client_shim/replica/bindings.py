"""The values of the names in a loop on which the analysis of its steps depends.

One loop may be used for several step functions, compiled or not, and for training and validation. The values are found
without running any code of the script, such as a property's.
"""

import ast
import functools
import itertools
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from client_shim.replica.attributes import flag_of, flags_of_owner, found, owners, tested
from client_shim.replica.branches import passed, stored
from client_shim.replica.syntax import loops_around, own_nodes

_MANY = 64  # attributes of an object that are read
_DEPTH = 3  # closures and wrappers around a function

Names = Mapping[str, Any]

_known: dict[tuple[CodeType, int], "_Names | None"] = {}


class _Names:
    """The calls and tests of the loops around a line."""

    def __init__(self, loops: list[Any]) -> None:
        nodes = list(own_nodes(loops[-1]))  # of the outermost, which contains the others
        self._calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, (ast.Name, ast.Attribute))]
        self._flags = sorted(tested(n for n in nodes if not isinstance(n, ast.Call)))
        self._bound = stored(own_nodes(loops[0]))

    def now(self, names: Names, of_script: Callable[[str], bool]) -> tuple[Any, ...]:
        """Return what the names are bound to, to be compared."""
        free = _Without(names, self._bound)
        return (
            *(flag_of(name, names) for name in self._flags),
            *(_of_call(call, names, free, of_script) for call in self._calls),
        )


class _Without(dict[str, Any]):
    """Looks names up, without those that the loop binds: their values are not those of the call."""

    def __init__(self, names: Names, but: set[str]) -> None:
        super().__init__()
        self._names, self._but = names, but

    def get(self, name: str, default: Any = None) -> Any:
        if self._but.intersection(owners(name)):
            return default
        return flag_of(name, self._names) if "." in name else self._names.get(name, default)


def without(names: Names, loop: ast.AST) -> Names:
    """Return the names that keep their values while the loop runs."""
    return _Without(names, stored(own_nodes(loop)))


def bindings(frame: FrameType, of_script: Callable[[str], bool]) -> tuple[Any, ...]:
    """Return what the analysis of the loops around the frame's line depends on, to be compared.

    `of_script(file)`: whether the script's own code is in the file. Other functions are not analysed.
    """
    place = frame.f_code, frame.f_lineno
    if place not in _known:
        loops = loops_around(frame)
        _known[place] = _Names(loops) if loops else None
    known = _known[place]
    return () if known is None else known.now(ChainMap(frame.f_locals, frame.f_globals), of_script)


def _of_call(call: ast.Call, names: Names, free: Names, of_script: Callable[[str], bool]) -> Any:
    function, owner = found(call.func, names)
    if isinstance(function, FunctionType) and not of_script(function.__code__.co_filename):
        return None
    owner = getattr(function, "__self__", owner)
    kind = _kind(function)
    return kind and (kind, tuple(_methods(owner)), flags_of_owner(owner, of_script), passed(call, free))


def _kind(function: Any, depth: int = 0) -> Any:
    """Return the code of a function and of what it closes over, and whether it is compiled; None for other values."""
    if depth > _DEPTH:
        return None
    if isinstance(function, functools.partial):
        return _kind(function.func, depth + 1)
    if isinstance(function, (MethodType, staticmethod, classmethod)):
        return _kind(function.__func__, depth + 1)
    if isinstance(function, FunctionType):
        return function.__code__, *(kind for kind in (_kind(cell, depth + 1) for cell in contents(function)) if kind)
    inner = getattr(function, "__dict__", {}).get("_python_function")
    return None if inner is None else ("compiled", _kind(inner, depth + 1))


def _methods(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions that an object holds."""
    held = {} if isinstance(owner, (ModuleType, type)) else getattr(owner, "__dict__", {})
    for name, value in itertools.islice(list(held.items()), _MANY):
        kind = _kind(value)
        if kind:
            yield name, kind


def contents(function: Any) -> list[Any]:
    """Return the values that a function closes over; None for those that are not bound yet."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the cell is still empty
            values.append(None)
    return values
