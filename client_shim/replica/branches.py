"""Branches that a call of a function does not take: `if training: optimizer.apply_gradients(...)` with False.

Only names and attributes decide that hold flags: booleans, None, strings, or objects that are not None. Where a test is
not decided, both branches count.
"""

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_shim.replica.syntax import SCOPES, own_nodes

UNKNOWN, OBJECT = type("UNKNOWN", (), {}), type("OBJECT", (), {})  # OBJECT: any value that is no flag; it is not None
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BODIES = ("body", "orelse", "finalbody")

Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """The flags that a call passes."""

    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def after(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> "Given":
        """Return the flags of the call with those of a partial function before them."""
        more = tuple((name, flag(value)) for name, value in kwargs.items())
        return Given((*map(flag, args), *self.args), tuple({**dict(more), **dict(self.kwargs)}.items()))


def flag(value: Any) -> Any:
    """Return a flag as it is, OBJECT for another value."""
    return value if isinstance(value, (bool, str, type(None))) or value is UNKNOWN else OBJECT


def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Given:
    """Return the flags that a call with these arguments passes."""
    return Given().after(args, kwargs)


def passed(call: ast.Call, names: Mapping[str, Any]) -> Given | None:
    """Return the flags that the source of a call passes; None if that does not show its arguments."""
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
        return None
    kwargs = tuple((str(k.arg), _argument(k.value, names)) for k in call.keywords)
    return Given(tuple(_argument(arg, names) for arg in call.args), kwargs)


def _argument(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return what a call passes on. A string in an attribute is no flag there: it is most often a text."""
    value = _value(node, names)
    return OBJECT if isinstance(node, ast.Attribute) and isinstance(value, str) else value


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return flag(node.value)
    path = chain(node)
    return flag(names.get(path, UNKNOWN)) if path else UNKNOWN


def chain(node: ast.AST) -> str:
    """Return the source of a name or a path of attributes, such as "self.training"; "" for other expressions."""
    if isinstance(node, ast.Attribute):
        owner = chain(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def parameters(function: Callable[..., Any], owner: Any, call: Given | None, scope: ast.AST) -> dict[str, Any]:
    """Return the flags among the function's parameters in this call, without those that its body binds again."""
    if call is None:
        return {}
    try:
        first = () if owner is None else (OBJECT,)
        bound = inspect.signature(function).bind(*first, *call.args, **dict(call.kwargs))
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    again = stored(own_nodes(scope))
    return {n: flag(v) for n, v in bound.arguments.items() if n not in again and v is not UNKNOWN}


def stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names and paths of attributes that the nodes bind."""
    kinds = ast.Name, ast.Attribute
    return {chain(n) for n in nodes if isinstance(n, kinds) and not isinstance(n.ctx, ast.Load)} - {""}


def living(nodes: Sequence[Any], flags: Flags) -> list[Any]:
    """Return a copy of the statements or expressions, without the branches that the flags exclude."""
    return list(_Living(flags).visit(ast.Module(copy.deepcopy(list(nodes)), [])).body)


class _Living(ast.NodeTransformer):
    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (*SCOPES, ast.ClassDef)):
            return node  # its parameters may have the same names
        visited = super().visit(node)
        for name in _BODIES:
            body = getattr(visited, name, None)
            if isinstance(body, list):
                end = next((i for i, each in enumerate(body) if isinstance(each, _ENDS)), len(body))
                del body[end + 1 :]
        return visited

    def visit_If(self, node: ast.If) -> Any:
        holds = decided(node.test, self._flags)
        self.generic_visit(node)
        return node if holds is None else [ast.Expr(node.test), *(node.body if holds else node.orelse)]

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        holds = decided(node.test, self._flags)
        self.generic_visit(node)
        return node if holds is None else node.body if holds else node.orelse


def decided(test: ast.AST, flags: Flags) -> bool | None:
    """Return what the test gives with these flags; None if they do not decide it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, flags)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        each, ends = [decided(value, flags) for value in test.values], isinstance(test.op, ast.Or)
        return ends if ends in each else None if None in each else not ends
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(_value(test.left, flags), test.ops[0], _value(test.comparators[0], flags))
    value = _value(test, flags) if isinstance(test, (ast.Name, ast.Attribute)) else UNKNOWN
    return None if value in (UNKNOWN, OBJECT) else bool(value)


def _compared(left: Any, how: ast.cmpop, right: Any) -> bool | None:
    if UNKNOWN in (left, right) or (left is OBJECT and right is OBJECT):
        return None
    if isinstance(how, (ast.Is, ast.IsNot)) and not isinstance(left, str) and not isinstance(right, str):
        return (left is right) == isinstance(how, ast.Is)
    if isinstance(how, (ast.Eq, ast.NotEq)) and OBJECT not in (left, right):
        return bool(left == right) == isinstance(how, ast.Eq)
    return None
