"""Capture detection: which capture a script gets, decided from its source before it runs.

Extract: the script trains by `fit`, and custom steps are methods of the model that `fit` calls. Replica: the script
applies gradients, or trains batch by batch, in code of its own.
"""

import ast
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from client_shim.replica.steps import BATCHWISE, applies
from client_shim.replica.syntax import last_name, sources
from client_shim.script_reads import STEP
from client_shim.surroundings import Surroundings, restore
from fdt.errors import NeedsReplica, UserError

# Base classes whose methods `fit` calls.
_OF_KERAS = (
    "Model",
    "Layer",
    "Callback",
    "Optimizer",
    "Sequential",
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Nadam",
    "Lion",
)
_ASSIGNS = ("assign", "assign_add", "assign_sub")
_SESSIONS = ("Session", "InteractiveSession", "MonitoredTrainingSession")


@dataclass(frozen=True)
class Finding:
    """One place where a script trains."""

    path: str
    line: int
    capture: str  # "extract" | "replica"
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.capture}: {self.why}"


@dataclass(frozen=True)
class CaptureDetection:
    """A script and the modules beside it, read once.

    Attributes:
        modules: Path and syntax tree of each module.
        classes: All classes of these modules, by name.
        findings: Every training call, in order.
    """

    modules: Sequence[tuple[Path, ast.Module]]
    classes: Mapping[str, list[ast.ClassDef]]
    findings: Sequence[Finding]

    @property
    def capture(self) -> str:
        """The capture that the script's source requires: "extract" or "replica"."""
        return "replica" if any(f.capture == "replica" for f in self.findings) else "extract"

    @property
    def uses_sessions(self) -> bool:
        """Whether the script makes a session of TensorFlow 1."""
        return any(_makes_session(tree) for _, tree in self.modules)


def detect_capture(script: str) -> CaptureDetection:
    """Analyse the source of `script`; files that cannot be read are skipped, and running the script reports them."""
    modules = list(sources(script))
    classes = _classes(tree for _, tree in modules)
    return CaptureDetection(modules, classes, [f for path, tree in modules for f in _of_module(path, tree, classes)])


def several_optimizers(script: CaptureDetection) -> bool:
    """Return whether the script makes a model whose own steps use more than one optimizer."""
    nodes = [node for _, tree in script.modules for node in ast.walk(tree)]
    made = [kind for n in nodes if isinstance(n, ast.Call) for kind in script.classes.get(last_name(n.func), ())]
    return any(len(_own_optimizers(kind, script.classes)) > 1 for kind in made)


def _own_optimizers(kind: ast.ClassDef, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    """Return the attributes by which a model applies gradients.

    Other names are ignored, because each may be an alias of such an attribute.
    """
    bases = _bases(kind, classes)
    if not any(base.endswith("Model") for base in bases):
        return set()
    family = [kind, *(of for base in bases for of in classes.get(base.rpartition(".")[2], ()))]
    calls = [n for of in family for n in ast.walk(of) if isinstance(n, ast.Call) and applies(n)]
    names = {ast.unparse(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)}
    return {name for name in names if name.startswith("self.")}


def own_updates(script: CaptureDetection) -> str:
    """Return the file and line where the script assigns weights by gradients that it takes; "" where it does not.

    A method of Keras's classes counts, with those that it calls, where other code names it and `fit` does not call it.
    """
    calls = [(path, *each) for path, tree in script.modules for each in _calls(tree, "", (), script.classes)]
    of_keras = [each for each in calls if _is_of_keras(each[3])]
    others = [each for each in calls if not _is_of_keras(each[3])]
    methods = {function for _, _, function, _ in of_keras}
    by_fit = _led_to({name for name in methods if name in STEP or name.startswith(("on_", "__"))}, of_keras)
    named = {name for _, tree in script.modules for name in _attributes(tree, script.classes)}
    led_to = [_led_to({name}, of_keras) - by_fit for name in sorted(methods & named)]
    for part in (others, *([each for each in of_keras if each[2] in names] for names in led_to)):
        moved = next((f"{path}:{call.lineno}" for path, call, *_ in part if last_name(call.func) in _ASSIGNS), "")
        if moved and any(last_name(call.func) == "GradientTape" for _, call, *_ in part):
            return moved
    return ""


def _attributes(node: ast.AST, classes: Mapping[str, list[ast.ClassDef]]) -> Iterator[str]:
    """Yield the names of the attributes that code outside of Keras's classes reads, called (`net.learn()`) or not."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef) or not _is_of_keras(_bases(child, classes)):
            yield from [child.attr] if isinstance(child, ast.Attribute) else ()
            yield from _attributes(child, classes)


def _is_of_keras(bases: Sequence[str]) -> bool:
    return any(base.endswith(_OF_KERAS) for base in bases)


def _led_to(names: set[str], calls: Sequence[tuple[Path, ast.Call, str, tuple[str, ...]]]) -> set[str]:
    """Return names of functions and of those that they call, by calls and the functions that these are in."""
    found = names
    while more := {last_name(call.func) for _, call, function, _ in calls if function in found} - found:
        found = found | more
    return found


def with_own_updates(script: CaptureDetection, *, divides: bool) -> CaptureDetection:
    """Return the detection, with a finding added for weights that the script assigns by gradients of its own.

    Args:
        script: The detection without such a finding.
        divides: The engine divides such a script. Other engines exchange gradients only at an optimizer.

    Raises:
        UserError: The engine does not divide such a script, and the script trains in no other way.
    """
    moved = own_updates(script)
    if moved and divides:
        path, _, line = moved.rpartition(":")
        found = Finding(path, int(line), "replica", "gradients are assigned to weights: every rank runs the script")
        return replace(script, findings=[*script.findings, found])
    if moved and not script.findings:
        raise UserError(
            f"{moved} assigns to weights without an optimizer, and workers push gradients where an optimizer applies "
            "them. Use keras.optimizers.SGD or hfdt; --capture extract trains in one process"
        )
    return script


def _makes_session(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Call) and _is_session(node.func) for node in ast.walk(tree))


def _is_session(function: ast.AST) -> bool:
    """Return whether `function` is a session class of TensorFlow; `requests` and others have a Session, too."""
    root = ast.unparse(function).partition(".")[0]
    return isinstance(function, ast.Attribute) and function.attr in _SESSIONS and root.startswith(("tf", "tensorflow"))


def _of_module(path: Path, tree: ast.Module, classes: Mapping[str, list[ast.ClassDef]]) -> Iterator[Finding]:
    modules = _modules(tree)
    in_sessions = _makes_session(tree)
    for call, function, bases in _calls(tree, "", (), classes):
        name = last_name(call.func)
        if name == "gradients" and in_sessions and ast.unparse(call.func).startswith(("tf.", "tensorflow.")):
            yield _applying(str(path), call.lineno, name, function, owned=False)
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in modules:
            continue  # a function of a module, such as scipy.optimize.minimize
        if name == "fit" and isinstance(call.func, ast.Attribute) and _may_be_keras(call):
            yield Finding(str(path), call.lineno, "extract", "fit: the model and the data are sent to workers")
        elif name == BATCHWISE:
            yield Finding(str(path), call.lineno, "replica", f"{name}: every rank runs the script")
        elif applies(call):
            owned = _is_of_keras(bases) or (function == "train_step" and bool(bases))
            yield _applying(str(path), call.lineno, name, function, owned)


def _applying(path: str, line: int, name: str, function: str, owned: bool) -> Finding:
    at = f" in {function}" if function else ""
    if owned:
        return Finding(path, line, "extract", f"{name}{at}, a method that fit calls: it is sent with the model")
    return Finding(path, line, "replica", f"{name}{at}, outside fit: every rank runs the script")


def _modules(tree: ast.Module) -> set[str]:
    """Return the names that `import` statements bind to modules."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _calls(
    node: ast.AST, function: str, bases: tuple[str, ...], classes: Mapping[str, list[ast.ClassDef]]
) -> Iterator[tuple[ast.Call, str, tuple[str, ...]]]:
    """Yield every call with the name of its function and all bases of its class, indirect ones included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function, bases
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _calls(child, child.name, bases, classes)
        elif isinstance(child, ast.ClassDef):
            yield from _calls(child, function, _bases(child, classes), classes)
        else:
            yield from _calls(child, function, bases, classes)


def _classes(trees: Iterable[ast.Module]) -> Mapping[str, list[ast.ClassDef]]:
    """Return the classes of all modules by name, and by the names that imports give them."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found: dict[str, list[ast.ClassDef]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    renamed = [a for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names if a.asname]
    return found | {a.asname: found[a.name] for a in renamed if a.asname and a.name in found}


def _bases(of: ast.ClassDef, classes: Mapping[str, list[ast.ClassDef]]) -> tuple[str, ...]:
    found: list[str] = []
    waiting = [of]
    while waiting:
        names = [ast.unparse(base) for base in waiting.pop().bases]
        new = [name for name in names if name not in found]
        waiting += [kind for name in new for kind in classes.get(name.rpartition(".")[2], ())]
        found += names
    return tuple(found)


def _may_be_keras(call: ast.Call) -> bool:
    """Return whether a call of `fit` has arguments of Keras's loop; scikit-learn and others have a `fit`, too."""
    return bool({k.arg for k in call.keywords} & {"epochs", "batch_size", "callbacks", "validation_data", "verbose"})


RUNS_AGAIN = "{command}: {reason}: the run starts again, and every rank runs the script"


@contextlib.contextmanager
def starting_over(command: str, given: Mapping[str, Any]) -> Iterator[bool]:
    """Within the context, a NeedsReplica replaces this process by the same command with `--capture replica`.

    No variable has been updated by then. The error is raised instead if the user chose a capture, if the run was
    detached, if its engine runs elsewhere, or if a `fit` has trained. The context has whether no option prevents it.

    Args:
        command: The command's name, for the message.
        given: The command line's options.
    """
    argv, began_in = sys.orig_argv, Surroundings.now()
    settled = given["capture"] not in (None, "auto") or given.get("detach") or given.get("server")
    possible = not settled and "run" in argv
    try:
        yield possible
    except NeedsReplica as found:
        if not possible or found.trained:
            raise
        print(RUNS_AGAIN.format(command=command, reason=found.reason), file=sys.stderr, flush=True)
        sys.stdout.flush()
        restore(began_in)  # the script may have changed its folder
        behind = argv.index("run") + 1
        os.execv(sys.executable, [sys.executable, *argv[1:behind], "--capture", "replica", *argv[behind:]])
