"""Analysis of the script's iterators over datasets: whether Python alone reads one, and whether errors are caught.

A rank may map its own rows alone only for an iterator that Python alone reads. A tf.function, a checkpoint or an
Optional reads the pipeline itself. And a row that fails in the map fails on one rank: the other ranks would go on,
were the error caught.
"""

import ast
import builtins
import dis
import functools
import itertools
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from client_shim.replica.steps import of_script, script_frames
from client_shim.replica.syntax import last_name, names_of, own_nodes, parsed, resolved, scope_of
from client_shim.script import OUR_FOLDERS

_KEEPERS = (enumerate, zip, map, list, tuple, itertools.islice, itertools.chain)  # they keep the iterator to themselves
_DRAWING = ("get_next", "__next__")  # methods that draw one element
_ELSEWHERE = (  # exceptions that no row raises
    "KeyboardInterrupt",
    "StopIteration",
    "GeneratorExit",
    "SystemExit",
    "ImportError",
    "ModuleNotFoundError",
    "OutOfRangeError",
)
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))
_WRAPPERS = "/tensorflow/python/autograph/"


def opened_at() -> FrameType | None:
    """Return the frame that iterates over the object whose replaced `__iter__` is running."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        path = frame.f_code.co_filename
        if not path.startswith(OUR_FOLDERS) and _WRAPPERS not in path:
            return frame
    return None


def read_elsewhere(frame: FrameType) -> str:
    """Return why others than Python may read the iterator that `frame` is about to get, or "" for Python alone.

    A `for` loop keeps its iterator to itself, and so do `enumerate` and `zip`. An iterator with a name may only be read
    by `next`, in all of its file.
    """
    path, line = frame.f_code.co_filename, frame.f_lineno
    if frame.f_code.co_code[frame.f_lasti] == dis.opmap["GET_ITER"]:
        return ""
    if not of_script(path):
        return f"{path}:{line} reads it"
    names, scope = names_of(frame), scope_of(parsed(path), frame.f_code)
    nodes = own_nodes(scope) if scope is not None else ()
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    opening = [call for call in calls if resolved(call.func, names) is builtins.iter]
    if not all(_is_drawn_from(call, path) for call in opening):
        return f"the iterator made at {path}:{line} is not only read by `next`"
    kept = any(resolved(call.func, names) in _KEEPERS for call in calls if _is_known(call, names))
    return "" if opening or kept else f"{path}:{line} reads it"


def _is_known(call: ast.Call, names: Mapping[str, Any]) -> bool:
    return getattr(resolved(call.func, names), "__module__", None) in ("builtins", "itertools")


def _is_drawn_from(call: ast.Call, path: str) -> bool:
    """Return whether the iterator that `iter(...)` returns is only read by Python."""
    parent = _parents(path).get(call)
    if isinstance(parent, (ast.For, ast.comprehension)):
        return parent.iter is call
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)):
        return False
    name = parent.targets[0].id
    return all(_draws(node, path) for node in ast.walk(parsed(path)) if isinstance(node, ast.Name) and node.id == name)


def _draws(name: ast.Name, path: str) -> bool:
    """Return whether this use of a name assigns it, or draws elements where no error is caught."""
    parents = _parents(path)
    parent = parents.get(name)
    if isinstance(name.ctx, ast.Store):
        return isinstance(parent, ast.Assign)
    if isinstance(parent, ast.Attribute):
        drawn = parent.attr in _DRAWING and isinstance(parents.get(parent), ast.Call)
    else:
        called = isinstance(parent, ast.Call) and last_name(parent.func) in ("next", "enumerate", "zip")
        drawn = called or (isinstance(parent, ast.For) and parent.iter is name)
    return drawn and not any(_catches(node, name.lineno) for node in _ancestors(name, parents))


@functools.cache
def _parents(path: str) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(parsed(path)) for child in ast.iter_child_nodes(node)}


def _ancestors(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    above = parents.get(node)
    while above is not None:
        yield above
        above = parents.get(above)


def catching() -> str:
    """Return the file and line of a running `try` of the script that may catch an error of a row; "" for none."""
    for frame in script_frames():
        path = frame.f_code.co_filename
        scope = scope_of(parsed(path), frame.f_code)
        for node in own_nodes(scope) if scope is not None else ():
            if _catches(node, frame.f_lineno):
                return f"{path}:{getattr(node, 'lineno', 0)}"
    return ""


def _catches(node: ast.AST, line: int) -> bool:
    """Return whether a statement catches, on this line, errors that a row may raise."""
    if isinstance(node, ast.With):
        suppresses = any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    else:
        suppresses = isinstance(node, _TRIES) and any(not _is_elsewhere(h.type) for h in node.handlers)
    body: Any = getattr(node, "body", ())
    return bool(suppresses and body[0].lineno <= line <= (body[-1].end_lineno or line))


def _is_elsewhere(caught: ast.AST | None) -> bool:
    kinds: Sequence[ast.AST | None] = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return all(kind is not None and last_name(kind) in _ELSEWHERE for kind in kinds)
