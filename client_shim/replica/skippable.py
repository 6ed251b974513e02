"""Analysis of whether a skippable region (client_shim/replica/skippable_regions.py) may be left out.

A region must run if it has effects besides the values of its names, or if the size of its slices is unknown.
"""

import ast
import copy
from collections.abc import Sequence
from typing import Any

from client_shim.replica.branches import chain
from client_shim.replica.rewriting import FUNCTIONS
from client_shim.replica.syntax import last_name

_COLLECTING = ("append", "appendleft", "extend", "insert", "add")
_SHOWING = ("print", "write", "debug", "info", "warning", "error", "log", "scalar", "histogram", "image", "update")
_TAKING = ("next", "get_next")
_ASSIGNING = ("assign", "assign_add", "assign_sub")
_PURE = ("len", "min", "max", "int", "abs")
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Slice, ast.Tuple)
_PARTS = (ast.expr_context, ast.operator, ast.unaryop)


def must_run(region: Sequence[Any]) -> bool:
    """Return whether the region continues from its last run's state: a sum, a count, an iterator's next item."""
    order = _Order()
    for statement in region:
        order.visit(statement)
    return bool(order.before & order.bound) or any(
        isinstance(node, ast.Match) or _changes(node, order.bound)  # patterns bind names that no ast.Name has
        for top in region
        for node in ast.walk(top)
    )


def slices(region: Sequence[Any], bound: Sequence[str]) -> list[Any] | None:
    """Return the slices that the region takes of earlier arrays, for their shapes; None if one may have effects."""
    nodes = [node for top in region for node in ast.walk(top)]
    cut = [n for n in nodes if isinstance(n, ast.Subscript) and _is_slice(n.slice)]
    outside = [node for node in cut if not _names(node) & set(bound)]
    if not all(_is_plain(node) for node in outside):
        return None
    return [copy.deepcopy(node) for node in outside]


def picks(region: Sequence[Any]) -> list[Any]:
    """Return the source, the container and the index of each value that the region picks, such as `models[i]`."""
    nodes = [node for top in region for node in ast.walk(top)]
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    found = [n for n in nodes if isinstance(n, ast.Subscript) and chain(n.value) and not _is_slice(n.slice)]
    plain = [n for n in found if not isinstance(n.slice, ast.Constant) and _is_plain(n.slice) and not _names(n) & bound]
    unique = {ast.unparse(n): n for n in plain}
    parts = ([ast.Constant(text), _loaded(n.value), copy.deepcopy(n.slice)] for text, n in unique.items())
    return [ast.Tuple(each, ast.Load()) for each in parts]


def _loaded(node: Any) -> Any:
    return ast.parse(ast.unparse(node), mode="eval").body


def _is_slice(index: Any) -> bool:
    return any(isinstance(node, ast.Slice) for node in ast.walk(index))


def _names(node: Any) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _is_plain(node: Any) -> bool:
    """Return whether evaluating the expression has no effects."""
    if isinstance(node, ast.Call):
        pure = isinstance(node.func, ast.Name) and node.func.id in _PURE and not node.keywords
        return pure and all(map(_is_plain, node.args))
    return isinstance(node, _PARTS) or (isinstance(node, _PLAIN) and all(map(_is_plain, ast.iter_child_nodes(node))))


def _changes(node: Any, bound: set[str]) -> bool:
    """Return whether the node changes an object made before the region, or takes its next item."""
    if isinstance(node, ast.Call) and last_name(node.func) in _TAKING:
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) in _SHOWING:
        return True
    targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
    changed: list[Any] = [t for t in targets if isinstance(t, (ast.Subscript, ast.Attribute))]
    if not isinstance(node, ast.AugAssign):
        # `self.loss = loss` keeps the value of the last run
        changed = [t for t in changed if isinstance(t, ast.Subscript)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) in _COLLECTING:
        changed.append(node.value.func)
    if isinstance(node, ast.Call) and last_name(node.func) in _ASSIGNING:
        changed.append(node.func)
    return any(_root(target) not in bound for target in changed)


def _root(node: Any) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class _Order(ast.NodeVisitor):
    """Collects `before`, the names read before they are surely bound, and `bound`, all names that are bound."""

    def __init__(self) -> None:
        self.before: set[str] = set()
        self.bound: set[str] = set()
        self._surely: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)
            self._surely.add(node.id)
        elif node.id not in self._surely:
            self.before.add(node.id)

    def _value_first(self, node: Any) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for part in (node.value, *targets):
            if part is not None:
                self.visit(part)

    visit_Assign = visit_AnnAssign = visit_NamedExpr = _value_first

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit_Name(ast.Name(node.target.id, ast.Load()))
        self._value_first(node)

    def visit_If(self, node: Any) -> None:
        self.visit(node.test)
        both = self._branch(node.body) & self._branch(node.orelse)
        self._surely |= both

    def _visit_loop(self, node: Any) -> None:
        self.visit(node.test if isinstance(node, ast.While) else node.iter)
        self._branch([*([] if isinstance(node, ast.While) else [node.target]), *node.body])
        self._branch(node.orelse)

    visit_For = visit_While = _visit_loop

    def visit_Try(self, node: ast.Try) -> None:
        bodies: list[list[Any]] = [node.body, *([handler] for handler in node.handlers), node.orelse]
        for body in bodies:
            self._branch(body)
        for statement in node.finalbody:
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item)
        suppresses = any(last_name(getattr(item.context_expr, "func", item)) == "suppress" for item in node.items)
        visit: Any = self._branch if suppresses else lambda body: list(map(self.visit, body))
        visit(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            self._branch([case.pattern, *([case.guard] if case.guard else []), *case.body])

    def _visit_scope(self, node: Any) -> None:
        """Visit a nested scope, whose own names are not the region's."""
        inner = [n for child in ast.iter_child_nodes(node) for n in ast.walk(child)]
        own = {n.arg for n in inner if isinstance(n, ast.arg)}
        own |= {n.id for n in inner if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self.before |= {n.id for n in inner if isinstance(n, ast.Name)} - own - self._surely
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self.visit_Name(ast.Name(node.name, ast.Store()))

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_scope
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_scope

    def _branch(self, body: list[Any]) -> set[str]:
        """Return the names that `body` surely binds if it runs, which it may not."""
        before = set(self._surely)
        for node in body:
            self.visit(node)
        branch, self._surely = self._surely, before
        return branch
