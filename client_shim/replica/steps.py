"""Analysis of which loops and functions of a script train, from its source and the values its names have at run time.

A *training step* takes gradients (by a tape, or by an optimizer's minimize) and applies them. A loop over batches is
divided where its own body has such a step. Where the step is a `tf.function` that receives the batch as arguments, that
function is divided instead, and the loop around it sees global batches.
"""

import ast
import builtins
import functools
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from client_shim.replica.attributes import Analysis
from client_shim.replica.bindings import bindings, contents, without
from client_shim.replica.branches import Given, given, living, parameters, passed
from client_shim.replica.syntax import (
    SCOPES,
    body_for,
    last_name,
    loops_around,
    names_of,
    own_nodes,
    parsed,
    resolved,
    scope_of,
)
from client_shim.script import OUR_FOLDERS
from fdt.compat import OPTIMIZER_MODULES
from fdt.service.blame import LIBRARIES

APPLIES = ("apply_gradients", "minimize")
_CALLS_BACK = os.path.join("tensorflow", "python", "ops", "script_ops.py")  # py_function, numpy_function, generators
BATCHWISE = "train_on_batch"
TAKES = ("GradientTape", "minimize", "gradients", "compute_gradients")

_KERAS = tuple(f"{path}{name}/" for path in LIBRARIES for name in ("keras", "tf_keras"))


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class StepCode:
    """Whether a piece of code takes gradients and whether it applies them."""

    takes: bool = False  # whether it takes gradients
    applies: bool = False

    def __or__(self, other: "StepCode") -> "StepCode":
        return StepCode(self.takes or other.takes, self.applies or other.applies)

    @property
    def trains(self) -> bool:
        """Whether the code both takes and applies gradients."""
        return self.takes and self.applies


@dataclass(frozen=True)
class Site:
    """A loop of the script: lines `first` to `last` of `code`."""

    code: CodeType
    first: int
    last: int
    trains: bool  # its own body applies gradients
    leads: bool = False  # its own body does, or a step function that it calls
    within: "Site | None" = None  # the surrounding loop of this code, if that trains or calls a step function

    @property
    def outermost(self) -> "Site":
        """The outermost loop around this one. Steps end with it, as after a critic's inner loop the generator steps."""
        return self if self.within is None else self.within.outermost

    def running(self) -> bool:
        """Return whether the loop is on this thread's stack."""
        stack = traceback.walk_stack(sys._getframe(1))
        return any(frame.f_code is self.code and self.first <= line <= self.last for frame, line in stack)


@functools.cache
def of_script(path: str) -> bool:
    """Return whether the file belongs to the script: not to us, a library or Python's start, nor generated."""
    starts = os.path.basename(path) in ("sitecustomize.py", "usercustomize.py")
    return not (starts or path.startswith(("<", *OUR_FOLDERS, *LIBRARIES)) or "__autograph_generated" in path)


def by_script() -> bool:
    """Return whether the script itself calls the caller of this function, in the main thread.

    It does not in other threads and where TensorFlow calls Python back, as for a map of a dataset: ranks are not at the
    same step there.
    """
    frame = sys._getframe(2)
    if not of_script(frame.f_code.co_filename) or not is_main():
        return False
    return not called_back(frame)


_PROCESS = os.getpid()


def is_main() -> bool:
    """Return whether this is the rank's main thread, and not a process that the script has forked."""
    return threading.current_thread() is threading.main_thread() and os.getpid() == _PROCESS


def called_back(frame: FrameType) -> bool:
    """Return whether TensorFlow has called Python back at `frame`."""
    return any(caller.f_code.co_filename.endswith(_CALLS_BACK) for caller, _ in traceback.walk_stack(frame))


def script_frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the frames that run the script's own code, innermost first: of this thread, or from `frame` on."""
    for each, _ in traceback.walk_stack(frame or sys._getframe(1)):
        if of_script(each.f_code.co_filename):
            yield each


def where() -> str:
    """Return the script's running file and line; in a thread without the script's code, the main thread's."""
    frame = next(script_frames(), None)
    if frame is None:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frame = next(script_frames(main), None)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown line"


_MANY = 1000  # analyses that are stored
# by code, line, and what the names there are bound to
_sites: dict[tuple[Any, ...], tuple[Analysis, Site | None]] = {}


def loop_at_work(*, called: bool = False) -> Site | None:
    """Return the innermost running loop of the script, for which a batch is drawn.

    Return None where Keras draws it: its `evaluate` and `predict` have a loop of their own.

    Args:
        called: Ignore Keras's frames that are innermost, because the script has called an optimizer's method.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_KERAS) and not called:
            return None
        if of_script(path):
            called = False
            key = frame.f_code, frame.f_lineno, *bindings(frame, of_script)
            if key not in _sites or not _sites[key][0].holds():
                analysis = Analysis()
                if len(_sites) > _MANY:
                    _sites.clear()
                _sites[key] = analysis, _find(frame, analysis)
            if _sites[key][1] is not None:
                return _sites[key][1]
        frame = frame.f_back
    return None


def function_trains(function: Any, arguments: Arguments | None = None) -> bool:
    """Return whether a call of `function` takes and applies gradients: with these arguments, or None: with any."""
    return _of_function_call(function, arguments).trains


def function_takes(function: Any, arguments: Arguments | None = None) -> bool:
    """Return whether a call of this tf.function takes gradients, as for `function_trains`."""
    return _of_function_call(function, arguments).takes


def _of_function_call(function: Any, arguments: Arguments | None) -> StepCode:
    """Return what the call does; the answer for a tf.function is cached."""
    call = None if arguments is None else given(*arguments)
    memo = vars(function).setdefault("_fdt_steps", {}) if hasattr(function, "_python_function") else {}
    if call not in memo:
        memo[call] = _of_callable(function, Analysis(), call, through=True)
    found: StepCode = memo[call]
    return found


def _find(frame: FrameType, analysis: Analysis) -> Site | None:
    found: Site | None = None
    for loop in reversed(loops_around(frame)):
        names = names_of(frame)
        flags = without(names, loop)
        body = body_for(living([loop], flags)[0], frame.f_lineno)
        analysis.seen.clear()  # what one loop calls, the next one may call with other flags
        own = _of_nodes(body, names, flags, analysis, through=False)
        all_ = _of_nodes(body, names, flags, Analysis(), through=True)
        within = found if found is not None and found.leads else None
        last = loop.end_lineno or loop.lineno
        found = Site(frame.f_code, loop.lineno, last, own.applies, all_.applies, within)
    return found


Names = Mapping[str, Any]


def _of_nodes(nodes: list[Any], names: Names, flags: Names, analysis: Analysis, *, through: bool) -> StepCode:
    """Return what the code does. `flags`: the names whose values are known to be those of its calls."""
    found = StepCode()
    for top in nodes:
        for node in (top, *own_nodes(top)):
            if isinstance(node, ast.Call):
                found |= _of_call(node, names, flags, analysis, through=through)
    return found


def _of_call(call: ast.Call, names: Names, flags: Names, analysis: Analysis, *, through: bool) -> StepCode:
    name = last_name(call.func)
    if name == BATCHWISE and isinstance(call.func, ast.Attribute):
        return StepCode(through, through)  # Keras's own step function
    named = StepCode(name in TAKES, applies(call))
    return named | _of_callable(resolved(call.func, names), analysis, passed(call, flags), through=through)


def applies(call: ast.Call) -> bool:
    """Return whether the call is, by its name, an optimizer's update of variables."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value).lower()
    if function.attr == "minimize":
        return "scipy" not in owner and "optimize" not in owner.split(".")
    return function.attr in APPLIES or (function.attr == "apply" and _is_optimizers(function.value))


def _is_optimizers(owner: ast.AST) -> bool:
    """Return whether the name is an optimizer's: `opt`, `self.d_optimizer`, `optimizers[0]`; not `df["option"]`."""
    while isinstance(owner, ast.Subscript):
        owner = owner.value
    parts = last_name(owner).lower().split("_")
    return any(part.rstrip("s0123456789") in ("opt", "optim", "optimizer", "optimiser") for part in parts)


def _of_callable(function: Any, analysis: Analysis, call: Given | None, *, through: bool) -> StepCode:
    """Return what `function` does; `through`: also analyse tf.functions that are steps of their own."""
    if isinstance(function, functools.partial):
        call = call and call.after(function.args, function.keywords)
        return _of_callable(function.func, analysis, call, through=through)
    inner = getattr(function, "_python_function", None)  # a tf.function
    if inner is not None:
        found = _of_callable(inner, analysis, call, through=True)
        return found if through or not found.trains else StepCode()
    if isinstance(function, MethodType) and _is_update(function):
        return StepCode(takes=function.__name__ in TAKES, applies=True)
    function = _unwrapped(function)
    if isinstance(function, MethodType):
        owner = getattr(function.__self__, "target", function.__self__)  # a tf.function's method holds its owner weakly
        return _of_function(_unwrapped(function.__func__), analysis, owner, call, through=through)
    if isinstance(function, FunctionType):
        return _of_function(function, analysis, None, call, through=through)
    method = vars(type(function)).get("__call__")
    if isinstance(method, FunctionType) and not isinstance(function, type):
        return _of_function(method, analysis, function, call, through=through)
    return StepCode()


def _is_update(method: MethodType) -> bool:
    """Return whether it is an optimizer's update of variables, whatever the script calls it."""
    modules = [str(kind.__module__) for kind in type(method.__self__).__mro__]
    return any(each.startswith(OPTIMIZER_MODULES) for each in modules) and method.__name__ in (*APPLIES, "apply")


def _unwrapped(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "python_function", function)


def _of_function(function: Any, analysis: Analysis, owner: Any, call: Given | None, *, through: bool) -> StepCode:
    code = getattr(function, "__code__", None)
    if code is None or not of_script(code.co_filename):
        return StepCode()
    scope = scope_of(parsed(code.co_filename), code)
    if scope is None:
        return StepCode()
    cells = dict(zip(code.co_freevars, contents(function), strict=True))
    names = {**vars(builtins), **function.__globals__, **cells}
    if owner is not None and code.co_argcount:
        names[code.co_varnames[0]] = owner
    # a tf.function keeps the flags of its trace
    flags = {**({} if through else analysis.flags(function, owner)), **parameters(function, owner, call, scope)}
    if (visited := (code, id(owner), call, *flags.items())) in analysis.seen:
        return StepCode()
    analysis.seen.add(visited)
    body = living(scope.body if isinstance(scope.body, list) else [scope.body], flags)
    body = [statement for statement in body if not isinstance(statement, SCOPES)]
    inner = [n for n in ast.walk(scope) if isinstance(n, SCOPES) and n is not scope]  # helper functions defined within
    of_body = _of_nodes(body, names, flags, analysis, through=through)
    return of_body | _of_nodes(inner, names, {}, analysis, through=through)
