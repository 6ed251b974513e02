"""Skippable regions: the code of an eager training step, rewritten so that another worker's turn leaves it out.

    for i in range(0, len(x), 32):                  for i in range(0, len(x), 32):
        with tf.GradientTape() as tape:                 if HOOKS.runs_here(1, locals(), ("batch", "model")):
            loss = mean(model(batch) ** 2)                  with HOOKS.step(), tf.GradientTape() as tape:
        gradients = tape.gradient(loss, weights)                loss = ...
        optimizer.apply_gradients(...)                      gradients = tape.gradient(...)
        print(loss)                                         HOOKS.keep(1, locals(), ("gradients", "loss"))
                                                        else:
                                                            tape = None
                                                            if HOOKS.restored(1, "gradients"): ...
                                                        optimizer.apply_gradients(...)
                                                        print(loss)
                                                    HOOKS.left(1)

A *region* begins with a tape and ends with the last statement beside it that takes gradients from it. Where a region is
left out, the names that it binds keep the values of its last run. All other code of the script always runs. So does a
region that continues from the state that its last run left (`total += loss`).
"""

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from client_shim.replica.rewriting import BODIES, FUNCTIONS, LOOPS, StepHooks, at, call, is_tape
from client_shim.replica.rewriting import rewrite as divide
from client_shim.replica.skippable import must_run, picks, slices
from client_shim.replica.steps import applies, by_script
from client_shim.replica.syntax import last_name

TAKEN = ("gradient", "jacobian", "batch_jacobian")  # methods of a tape
_keys = itertools.count(1)


class RegionHooks(StepHooks):
    """The functions that code with skippable regions calls."""

    marks = (b"for", b"while")

    def runs_here(self, region: int, names: dict[str, Any], *read: Any) -> bool:
        """Return whether the region is to run; `read`: as `mine` of nfdt/replica/skippable_regions.py takes it."""
        return self.rank is None or not by_script() or bool(self.rank.mine(region, names, *read))

    def keep(self, region: int, names: dict[str, Any], bound: tuple[str, ...]) -> None:
        """Keep the values that the region has bound, after it has run."""
        if self.rank is not None and by_script():
            self.rank.keep(region, {name: names[name] for name in bound if name in names})

    def give(self, region: int, value: Any) -> Any:
        """Keep and return the `value` that the region's function returns."""
        if self.rank is not None and by_script():
            self.rank.keep(region, {"": value})
        return value

    def restored(self, region: int, name: str) -> bool:
        """Return whether the region's last run bound `name`."""
        return name in self.rank.last(region)

    def last(self, region: int, name: str = "") -> Any:
        """Return the value of `name` from the region's last run; "": the value that its function returned."""
        return self.rank.last(region)[name]

    def left(self, first: int) -> None:
        """Note that the loop which begins at line `first` has ended; 0: every loop that no longer runs has ended."""
        if self.rank is not None and by_script():
            self.rank.left(first)

    def rewrite(self, module: ast.Module) -> ast.Module:
        """Return `module`, rewritten in place."""
        regions = [region for body in _bodies(module, divided=False) for region in _regions(body)]
        loads = _loads(module)
        bound = [_names(region, ast.Store) for region in regions]
        kept = [[n for n in b if loads[n] > _loads(*r)[n]] for r, b in zip(regions, bound, strict=True)]
        reads = [_names(region, ast.Load, stores) for region, stores in zip(regions, bound, strict=True)]
        cuts = [None if must_run(r) else slices(r, stores) for r, stores in zip(regions, bound, strict=True)]
        picked = [picks(region) for region in regions]
        divide(module)
        parts = zip(regions, reads, bound, kept, cuts, picked, strict=True)
        wrapped = {part[0][0]: _wrapped(*part) for part in parts}
        inside = {statement for region in regions for statement in region[1:]}
        _Wrapping(wrapped, inside).visit(module)
        return ast.fix_missing_locations(module)


Region = list[Any]  # statements


def _loads(*nodes: Any) -> Counter[str]:
    """Return how often each name is read in `nodes`."""
    inner = [node for each in nodes for node in ast.walk(each)]
    names = [n for n in inner if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)]
    names += [n.target for n in inner if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]
    return Counter(name.id for name in names)


def _bodies(node: Any, *, divided: bool) -> Iterator[list[Any]]:
    """Yield the lists of statements in loops and functions."""
    for name in (*BODIES, "handlers", "cases"):
        body = getattr(node, name, ())
        within = divided or isinstance(node, LOOPS)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            within = isinstance(node, FUNCTIONS)
        if not isinstance(body, list):
            continue  # the body of an expression
        if within:
            yield body
        for statement in body:
            yield from _bodies(statement, divided=within)


def _regions(body: list[Any]) -> Iterator[Region]:
    """Yield the regions that begin in `body`. A tape whose gradients are taken elsewhere begins none."""
    start = 0
    while start < len(body):
        if _minimizes(body[start]):
            yield [body[start]]
        end = _end(body, start) if is_tape(body[start]) else None
        if end is not None:
            if not any(isinstance(node, ast.Return) for node in _before_its_end(body[start : end + 1])):
                yield body[start : end + 1]
            start = end
        start += 1


def _minimizes(statement: Any) -> bool:
    """Return whether an optimizer takes the gradients of a loss that it calls itself."""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    return isinstance(value, ast.Call) and last_name(value.func) == "minimize" and applies(value)


def _before_its_end(region: Region) -> Iterator[Any]:
    """Yield the nodes of the region, without a `return` at its end."""
    whole = region[:-1] if isinstance(region[-1], ast.Return) else region
    return (node for statement in whole for node in (statement, *_own(statement)))


def _end(body: list[Any], start: int) -> int | None:
    """Return the index of the last statement that takes gradients from the tapes which begin at `start`."""
    tapes, end = _tapes(body[start]), None
    for i in range(start, len(body)):
        if i > start and is_tape(body[i]):
            if _tapes(body[i]) & tapes or end is None or not _takes(body[i + 1 :], tapes):
                break
            tapes |= _tapes(body[i])
        if _takes([body[i]], tapes):
            end = i
    return end


def _tapes(statement: Any) -> set[str]:
    """Return the names of the tapes that the statement makes."""
    items = statement.items if isinstance(statement, ast.With) else []
    return {i.optional_vars.id for i in items if isinstance(i.optional_vars, ast.Name)}


def _takes(statements: list[Any], tapes: set[str]) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr in TAKEN and isinstance(n.value, ast.Name) and n.value.id in tapes
        for statement in statements
        for n in ast.walk(statement)
    )


def _names(region: Region, context: type, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the variables that the region binds or reads, without those of nested functions and without `but`."""
    nodes = [n for statement in region for n in (statement, *_own(statement))]
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    return tuple(sorted(found - set(but)))


def _own(node: Any) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef, ast.ListComp, ast.GeneratorExp)):
            yield from _own(child)


def _wrapped(
    region: Region,
    reads: tuple[str, ...],
    bound: tuple[str, ...],
    kept: list[str],
    cut: list[Any] | None,
    picked: list[Any],
) -> ast.If:
    """Return the `if` that runs the region or restores `kept`, the names it binds that are read elsewhere."""
    key, first, last = ast.Constant(next(_keys)), region[0], region[-1]
    names = ast.Call(ast.Name("locals", ast.Load()), [], [])
    tapes = _tapes(first) & set(bound)
    kept = [name for name in kept if name not in tapes]
    otherwise: list[Any] = [_assign(name, ast.Constant(None)) for name in sorted(tapes)]
    if isinstance(last, ast.Return):
        last.value = call("give", key, last.value or ast.Constant(None))
        otherwise, body = [ast.Return(call("last", key))], region
    else:
        body = [*region, ast.Expr(call("keep", key, names, _tuple(kept)))]
        otherwise += [_restored(key, name) for name in kept]
    for statement in (*body[len(region) :], *otherwise):
        at(statement, first)
        for node in ast.walk(statement):
            at(node, first)
    asked = [ast.Constant(None) if cut is None else _lambda(cut), *([_lambda(picked)] if picked else [])]
    choice = ast.If(at(call("runs_here", key, names, _tuple(reads), *asked), first), body, otherwise or [ast.Pass()])
    for node in ast.walk(choice.test):
        at(node, first)
    ast.copy_location(choice, first)
    return choice


def _lambda(values: list[Any]) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Tuple(values, ast.Load()))


def _restored(key: ast.Constant, name: str) -> ast.If:
    known = ast.Constant(name)
    return ast.If(call("restored", key, known), [_assign(name, call("last", key, known))], [])


def _assign(name: str, value: Any) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _tuple(names: Any) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


class _Wrapping(ast.NodeTransformer):
    """Replaces each region's first statement by its `if` and removes the others.

    It also inserts the ends of loops: after a loop, before a `return` in it, and where an exception that ends it is
    handled.
    """

    def __init__(self, wrapped: dict[Any, ast.If], inside: set[Any]) -> None:
        self._wrapped, self._inside = wrapped, inside
        self._loops: list[int] = []  # first lines of the surrounding loops of this function

    def visit(self, node: ast.AST) -> Any:
        if node in self._inside:
            return None
        if node not in self._wrapped:
            return self._visited(node)
        wrapped = self._wrapped.pop(node)
        visited = [self._visited(statement) for statement in wrapped.body]
        wrapped.body = [s for each in visited for s in (each if isinstance(each, list) else [each])]
        return wrapped

    def _visited(self, node: Any) -> Any:
        around = self._loops
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._loops = []
        elif isinstance(node, LOOPS):
            self._loops = [*around, node.lineno]
        visited = super().visit(node)
        self._loops = around
        if isinstance(node, LOOPS):
            return [visited, _left(node.lineno, node)]
        if isinstance(node, ast.Return):
            return [*(_left(line, node) for line in around), visited]
        if isinstance(node, _PLAIN) and any(isinstance(inner, _LISTING) for inner in ast.walk(node)):
            return [visited, _left(0, node)]
        if isinstance(node, ast.ExceptHandler) and not _STOPS & _named(node.type):
            visited.body.insert(0, _left(0, node.body[0]))
        return visited


_PLAIN = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
_LISTING = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# handlers of a user's interrupt, which must not wait for other ranks
_STOPS = {"", "BaseException", "KeyboardInterrupt", "SystemExit"}


def _named(kinds: Any) -> set[str]:
    return {last_name(kind) for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])}


def _left(line: int, place: Any) -> Any:
    return at(ast.Expr(call("left", ast.Constant(line))), place)
