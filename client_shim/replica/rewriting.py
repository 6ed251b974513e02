"""Rewriting of eager training steps: calls of StepHooks mark where a step begins, what it reads and where it ends.

    for i in range(0, len(x), 32):                  for i in range(0, len(x), 32):
        batch = x[i:i+32]                               HOOKS.done()
        with tf.GradientTape() as tape:                 batch = x[i:i+32]
            loss = mean(model(batch) ** 2)              with HOOKS.step(), tf.GradientTape() as tape:
        apply(tape.gradient(loss, ...))                     loss = mean(model(HOOKS.local(batch)) ** 2)
        print(accuracy(model, batch))                   ...

Reads within a tape, and after it up to the end of the loop's body or of the function, pass through `local`. The return
value of such a function passes through `replicated`. The calls have no effect in a graph. Line numbers do not change.
"""

import ast
import builtins
import contextlib
import functools
import importlib.machinery
from collections.abc import Iterator
from typing import Any

from client_shim.replica.steps import of_script
from client_shim.replica.syntax import last_name
from fdt.patches import replace

STEP_HOOKS = "__fdt_hands__"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While)
BODIES = ("body", "orelse", "finalbody")


class StepHooks:
    """The functions that rewritten code calls. They pass each call on to `rank`, once there is one."""

    rank: Any = None
    marks: tuple[bytes, ...] = (b"GradientTape",)  # a module without any of these is not rewritten

    def pass_on_to(self, rank: Any) -> None:
        """Pass calls on to `rank`; None: to no rank."""
        self.rank = rank

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Surround the outermost tape of a step."""
        return contextlib.nullcontext() if self.rank is None else self.rank.step()

    def local(self, value: Any) -> Any:
        """Return `value`, or the rank's part of it where the rank divides batches.

        NFDT's rank returns it unchanged and takes the number of samples from it.
        """
        return value if self.rank is None else self.rank.part(value)

    def array(self, value: Any) -> Any:
        """Act as `local` for the owner of an attribute: `losses.append` must be that of the script's own list."""
        return value if self.rank is None else self.rank.array(value)

    def replicated(self, value: Any) -> Any:
        """Return the value that a function with a step returns."""
        return value if self.rank is None else self.rank.whole(value)

    def done(self) -> None:
        """End the step: the next tape begins another one."""
        if self.rank is not None:
            self.rank.done()

    def rewrite(self, module: ast.Module) -> ast.Module:
        """Return `module`, rewritten so that it calls these hooks."""
        return rewrite(module)


@contextlib.contextmanager
def rewritten(hooks: StepHooks) -> Iterator[None]:
    """Within the context, the script's modules are rewritten when they are imported, and their code finds `hooks`."""
    loader = importlib.machinery.SourceFileLoader
    with contextlib.ExitStack() as stack:
        setattr(builtins, STEP_HOOKS, hooks)
        stack.callback(delattr, builtins, STEP_HOOKS)
        replace(stack, loader, "get_code", _get_code(loader.get_code, hooks))
        yield


def _get_code(original: Any, hooks: StepHooks) -> Any:
    @functools.wraps(original)
    def get_code(loader: Any, name: str) -> Any:
        path = loader.get_filename(name)
        if not of_script(path):
            return original(loader, name)
        source = loader.get_data(path)
        if not any(mark in source for mark in hooks.marks):
            return original(loader, name)
        return compile(hooks.rewrite(ast.parse(source, path)), path, "exec", dont_inherit=True)

    return get_code


def rewrite(module: ast.Module) -> ast.Module:
    """Return `module`, its eager steps rewritten in place."""
    found = _StepFinder()
    found.finds_step(module.body, divided=False)
    return ast.fix_missing_locations(_StepRewriter(found).visit(module)) if found.tapes else module


class _StepFinder:
    """Finds tapes, the statements after them, and the loops and functions whose own body has one."""

    def __init__(self) -> None:
        self.tapes: set[ast.AST] = set()
        self.after: set[ast.AST] = set()
        self.loops: set[ast.AST] = set()
        self.functions: set[ast.AST] = set()

    def finds_step(self, body: list[Any], *, divided: bool) -> bool:
        """Return whether there is a tape among these statements; `divided`: they are in a loop or a function."""
        found = False
        for statement in body:
            if found:
                self.after.add(statement)
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                of_function = isinstance(statement, FUNCTIONS)
                if self.finds_step(statement.body, divided=of_function) and of_function:
                    self.functions.add(statement)
            elif is_tape(statement):
                self.tapes.update([statement] if divided else [])
                found |= divided
            else:
                found |= self._within(statement, divided)
        return found

    def _within(self, statement: Any, divided: bool) -> bool:
        loop = isinstance(statement, LOOPS)
        bodies = [getattr(statement, name, []) for name in BODIES]
        bodies += [part.body for name in ("handlers", "cases") for part in getattr(statement, name, [])]
        # `sum`, because every body must be visited
        inner = sum(self.finds_step(body, divided=divided or loop) for body in bodies) > 0
        if inner and loop:
            self.loops.add(statement)
        return inner and not loop


def is_tape(statement: ast.AST) -> bool:
    """Return whether the statement is a `with` of a GradientTape."""
    if not isinstance(statement, ast.With):
        return False
    calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
    return any(last_name(call.func) == "GradientTape" for call in calls)


class _StepRewriter(ast.NodeTransformer):
    def __init__(self, found: _StepFinder) -> None:
        self._found = found
        self._inside = False  # in a tape's body, or after it
        self._function = False  # in a function that has a tape

    def visit(self, node: ast.AST) -> Any:
        if node not in self._found.after:
            return super().visit(node)
        with self._now(inside=True):
            return super().visit(node)

    def visit_match_case(self, node: ast.match_case) -> Any:
        guard = None if node.guard is None else self.visit(node.guard)
        return ast.match_case(node.pattern, guard, [self.visit(each) for each in node.body])  # a pattern is no code

    def visit_With(self, node: ast.With) -> Any:
        if node not in self._found.tapes:
            return self.generic_visit(node)
        with self._now(inside=True):
            node.body = [self.visit(statement) for statement in node.body]
        node.items.insert(0, ast.withitem(at(call("step"), node), None))
        return node

    def _visit_function(self, node: Any) -> Any:
        has_one = node in self._found.functions
        with self._now(inside=False, function=has_one):
            node.body = [self.visit(statement) for statement in node.body]
        if has_one:
            node.body.append(at(ast.Expr(call("done")), node.body[-1]))
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        with self._now(inside=False, function=False):
            return self.generic_visit(node)

    def _visit_loop(self, node: Any) -> Any:
        self.generic_visit(node)
        if node in self._found.loops:
            node.body.insert(0, at(ast.Expr(call("done")), node.body[0]))
        return node

    visit_For = visit_While = _visit_loop

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if self._inside and self._function:
            node.value = at(call("replicated", node.value or ast.Constant(None)), node)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        return self._read(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.value = self._owner(node.value)
        return self._read(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Rewrite `x[a:b]` as a read of the undivided x, and `x.shape[0]` as the size of the rank's part."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            node.value.value = self._owner(node.value.value)
        return self._read(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self._owner(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    def _owner(self, node: Any) -> Any:
        """Rewrite the value before a dot: it passes StepHooks.array in place of StepHooks.local."""
        node = self.visit(node)
        if _is_call(node, "local"):
            node.func.attr = "array"
        return node

    def _read(self, node: Any) -> Any:
        if not self._inside or not isinstance(node.ctx, ast.Load):
            return node
        return at(call("local", node), node)

    @contextlib.contextmanager
    def _now(self, *, inside: bool, function: bool | None = None) -> Iterator[None]:
        before = self._inside, self._function
        self._inside, self._function = inside, self._function if function is None else function
        try:
            yield
        finally:
            self._inside, self._function = before


def call(name: str, *arguments: Any) -> ast.Call:
    """Return a call of the hook `name`."""
    return ast.Call(ast.Attribute(ast.Name(STEP_HOOKS, ast.Load()), name, ast.Load()), list(arguments), [])


def _is_call(node: Any, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"{STEP_HOOKS}.{name}"


def at(node: Any, place: Any) -> Any:
    """Return `node` with the line numbers of `place`."""
    return ast.copy_location(node, place)
