"""Syntax of running code: the syntax tree of a frame's code and the values of its names."""

import ast
import builtins
import functools
import linecache
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

Loop = ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
ITERATING = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def loops_around(frame: FrameType) -> list[Any]:
    """Return the syntax of the frame's own loops around its current line, innermost first."""
    line, scope = frame.f_lineno, scope_of(parsed(frame.f_code.co_filename), frame.f_code)
    nodes = () if scope is None else own_nodes(scope)
    around = [n for n in nodes if isinstance(n, ITERATING) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    return sorted(around, key=lambda n: (n.lineno, n.col_offset), reverse=True)


def names_of(frame: FrameType) -> dict[str, Any]:
    """Return the values of all names that the frame's code can read."""
    return {**vars(builtins), **frame.f_globals, **frame.f_locals}


@functools.cache
def parsed(path: str) -> ast.Module:
    """Return the file's syntax tree; an empty one where there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def scope_of(tree: ast.Module, code: CodeType) -> Any:
    """Return the part of `tree` that `code` was compiled from."""
    if code.co_name == "<module>":
        return tree
    comprehension = code.co_name in ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
    for node in ast.walk(tree):
        if comprehension and isinstance(node, ITERATING[2:]) and node.lineno == code.co_firstlineno:
            return ast.Expression(node)
        if isinstance(node, SCOPES) and _first_line(node) == code.co_firstlineno:
            return node
    return None


def _first_line(node: Any) -> int:
    return int(min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]))


def own_nodes(scope: Any) -> Iterator[ast.AST]:
    """Yield the nodes of `scope`, without those of nested functions and classes."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*SCOPES, ast.ClassDef)):
            yield from own_nodes(child)


def last_name(node: ast.AST) -> str:
    """Return `fit` for `model.fit`, `f` for `f`, and "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def resolved(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the current value of the name or attribute; None where more than a lookup would be needed."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, names)
        try:
            return None if owner is None else getattr(owner, node.attr, None)
        except Exception:  # a property of the script's own raised it
            return None
    return None
