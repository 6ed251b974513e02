"""Flags in attributes and in variables of a module, as in `if self.training:`. They are read when a loop is analysed.

The values are found without running any code of the script, such as a property's.
"""

import ast
import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

from client_shim.replica.branches import OBJECT, UNKNOWN, chain, flag, stored
from client_shim.replica.syntax import own_nodes, parsed, scope_of

_paths: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()  # by class: see flags_of_owner


def found(node: ast.AST, names: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the value of a name or an attribute, and the attribute's owner; None where more would be needed."""
    if isinstance(node, ast.Name):
        return names.get(node.id), None
    if not isinstance(node, ast.Attribute):
        return None, None
    owner, _ = found(node.value, names)
    value = inspect.getattr_static(owner, node.attr, None)
    if isinstance(value, MemberDescriptorType):  # of __slots__
        with contextlib.suppress(AttributeError):
            return value.__get__(owner), owner
    return (None, None) if value is None and owner is None else (value, owner)


@functools.cache
def _parsed_path(path: str) -> ast.expr:
    return ast.parse(path, mode="eval").body


def flag_of(path: str, names: Mapping[str, Any]) -> Any:
    """Return the flag of a name or a path of attributes ("self.training"); UNKNOWN for a property."""
    if "." not in path:
        return flag(names.get(path, UNKNOWN))
    value, owner = found(_parsed_path(path), names)
    return UNKNOWN if owner is None or hasattr(type(value), "__get__") else flag(value)


def passed_flag(path: str, names: Mapping[str, Any]) -> Any:
    """Return the flag of a path that a call passes on. Strings are none there: they are most often a text."""
    value = flag_of(path, names)
    return OBJECT if isinstance(value, str) else value


def tested(nodes: Iterable[ast.AST]) -> dict[str, Callable[[str, Mapping[str, Any]], Any]]:
    """Return how to read the names and paths of attributes that decide a branch, or that calls pass on."""
    found = dict[str, Any]()
    for node in nodes:
        if isinstance(node, (ast.If, ast.IfExp)):
            found |= {chain(inner): flag_of for inner in ast.walk(node.test)}
        elif isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            found = {chain(inner): passed_flag for part in parts for inner in ast.walk(part)} | found
    return {path: read for path, read in found.items() if path}


@functools.cache
def _tested_in(code: CodeType) -> dict[str, Callable[[str, Mapping[str, Any]], Any]]:
    """Return `tested` of a function: what is of its first parameter or its module, and not bound by itself."""
    scope = scope_of(parsed(code.co_filename), code)
    nodes = [] if scope is None else list(own_nodes(scope))
    own = {*(code.co_varnames[1:] if code.co_argcount else code.co_varnames), *code.co_freevars, *stored(nodes)}
    return {path: read for path, read in sorted(tested(nodes).items()) if not own & set(owners(path))}


def owners(path: str) -> Iterator[str]:
    """Yield "a.b.c", "a.b" and "a" for "a.b.c"."""
    parts = path.split(".")
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))


def flags_of_owner(owner: Any, of_script: Callable[[str], bool]) -> tuple[Any, ...]:
    """Return the flags of an object that the methods of its class test."""
    kind = type(owner)
    if kind not in _paths:
        functions = [value for each in kind.__mro__ for value in vars(each).values()]
        codes = [f.__code__ for f in functions if isinstance(f, FunctionType) and of_script(f.__code__.co_filename)]
        _paths[kind] = {}
        for code in codes:
            for path, read in _tested_in(code).items():
                name = f"owner.{path.partition('.')[2]}"
                if _is_of_owner(path, code) and _paths[kind].get(name) is not flag_of:
                    _paths[kind][name] = read
    return tuple(read(path, {"owner": owner}) for path, read in _paths[kind].items())


def _is_of_owner(path: str, code: CodeType) -> bool:
    return bool(code.co_argcount) and path.startswith(f"{code.co_varnames[0]}.")


@dataclass
class Analysis:
    """The calls that an analysis has visited, and the flags that it has read."""

    seen: set[Any] = field(default_factory=set)
    _reads: list[tuple[Any, ...]] = field(default_factory=list)

    def flags(self, function: Any, owner: Any) -> dict[str, Any]:
        """Return the flags of attributes and of the module that the function tests. `owner`: its first argument."""
        code, names, flags = function.__code__, function.__globals__, dict[str, Any]()
        for path, read in _tested_in(code).items():
            of_owner = _is_of_owner(path, code)
            if path in code.co_varnames or (of_owner and owner is None):
                continue
            root = _root(code.co_varnames[0], owner) if of_owner else lambda: names
            flags[path] = read(path, root())
            self._reads.append((read, path, root, flags[path]))
        return {path: value for path, value in flags.items() if value is not UNKNOWN}

    def holds(self) -> bool:
        """Return whether all flags still have their values."""
        return all(_is_same(read(path, root()), value) for read, path, root, value in self._reads)


def _root(name: str, owner: Any) -> Callable[[], Mapping[str, Any]]:
    try:
        known = weakref.ref(owner)
    except TypeError:
        return lambda: {name: owner}
    return lambda: {name: known()}


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
