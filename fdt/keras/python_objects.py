"""Python's own objects that cloudpickle cannot write: globals of annotations, weak references, locks, thread values."""

import ast
import inspect
import textwrap
import threading
import weakref
from collections.abc import Callable
from typing import Any

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def reduce_plain(obj: Any, _: Any) -> Any:
    """Reduce objects that Python cannot pickle, or that have no meaning in another process."""
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


def annotation_globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals that `function`'s annotations name; cloudpickle includes only those that the code names."""
    if not function.__annotations__:
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return {}
    names = {node.id for hint in _hints(tree) for node in ast.walk(hint) if isinstance(node, ast.Name)}
    return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}


def _hints(tree: ast.AST) -> list[ast.AST]:
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
    return [hint for hint in found if hint is not None]
