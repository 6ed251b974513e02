"""Flags in attributes and in variables of a module, as in `if self.training:`. They are read when a loop is analysed.

The values are found without running any code of the script, such as a property's.
"""

import ast
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from client_shim.replica.branches import UNKNOWN, chain, flag, stored
from client_shim.replica.syntax import own_nodes, parsed, scope_of

_paths: weakref.WeakKeyDictionary[type, list[str]] = weakref.WeakKeyDictionary()  # by class: see flags_of_owner


def found(node: ast.AST, names: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the value of a name or an attribute, and the attribute's owner; None where more would be needed."""
    if isinstance(node, ast.Name):
        return names.get(node.id), None
    if not isinstance(node, ast.Attribute):
        return None, None
    owner, _ = found(node.value, names)
    for held in (owner, *type(owner).__mro__):
        attributes = getattr(held, "__dict__", {})
        if node.attr in attributes:
            return attributes[node.attr], owner
    return None, None


def flag_of(path: str, names: Mapping[str, Any]) -> Any:
    """Return the flag of a name or a path of attributes ("self.training"); UNKNOWN for a property."""
    if "." not in path:
        return flag(names.get(path, UNKNOWN))
    value, owner = found(ast.parse(path, mode="eval").body, names)
    return UNKNOWN if owner is None or hasattr(type(value), "__get__") else flag(value)


def tested(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names and paths of attributes that decide a branch, or that calls pass on."""
    found: set[str] = set()
    for node in nodes:
        parts = [node.test] if isinstance(node, (ast.If, ast.IfExp)) else []
        if isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        found |= {chain(inner) for part in parts for inner in ast.walk(part)}
    return found - {""}


@functools.cache
def _tested_in(code: CodeType) -> tuple[str, ...]:
    """Return what a function tests, of its first parameter and of its module, and does not bind itself."""
    scope = scope_of(parsed(code.co_filename), code)
    nodes = [] if scope is None else list(own_nodes(scope))
    own = {*(code.co_varnames[1:] if code.co_argcount else code.co_varnames), *code.co_freevars, *stored(nodes)}
    return tuple(sorted(path for path in tested(nodes) if not own & set(owners(path))))


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
        _paths[kind] = sorted({p.partition(".")[2] for c in codes for p in _tested_in(c) if _is_of_owner(p, c)})
    return tuple(flag_of(f"owner.{path}", {"owner": owner}) for path in _paths[kind])


def _is_of_owner(path: str, code: CodeType) -> bool:
    return bool(code.co_argcount) and path.startswith(f"{code.co_varnames[0]}.")


@dataclass
class Analysis:
    """The calls that an analysis has visited, and the flags that it has read."""

    seen: set[Any] = field(default_factory=set)
    _reads: list[tuple[Callable[[], Any], str, Any]] = field(default_factory=list)

    def flags(self, function: Any, owner: Any) -> dict[str, Any]:
        """Return the flags of attributes and of the module that the function tests. `owner`: its first argument."""
        code, flags = function.__code__, dict[str, Any]()
        for path in _tested_in(code):
            of_owner = _is_of_owner(path, code)
            if path in code.co_varnames or (of_owner and owner is None):
                continue
            root = _root(code.co_varnames[0], owner) if of_owner else functools.partial(_same, function.__globals__)
            flags[path] = flag_of(path, root())
            self._reads.append((root, path, flags[path]))
        return {path: value for path, value in flags.items() if value is not UNKNOWN}

    def holds(self) -> bool:
        """Return whether all flags still have their values."""
        return all(_is_same(flag_of(path, root()), value) for root, path, value in self._reads)


def _root(name: str, owner: Any) -> Callable[[], Mapping[str, Any]]:
    try:
        known = weakref.ref(owner)
    except TypeError:
        return functools.partial(_same, {name: owner})
    return lambda: {name: known()}


def _same(names: Mapping[str, Any]) -> Mapping[str, Any]:
    return names


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
