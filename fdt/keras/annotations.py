"""The globals that a function's annotations name: cloudpickle writes only those that its code names."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


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
