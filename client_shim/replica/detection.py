"""Which capture a script gets, by a look at its source before it runs.

Extract: its training is `fit`, and custom steps are the model's methods that `fit` calls. Replica: it applies
gradients, or trains batch by batch, in code of its own.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from client_shim.replica.sources import sources
from client_shim.replica.steps import BATCHWISE, applies
from client_shim.replica.syntax import last_name
from fdt.errors import UserError

# Whose methods `fit` calls.
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
    """A script and the modules beside it, read once. `classes`: all of theirs, by name."""

    modules: Sequence[tuple[Path, ast.Module]]
    classes: Mapping[str, list[ast.ClassDef]]
    findings: Sequence[Finding]  # every training call, in order

    @property
    def capture(self) -> str:
        """What the source asks for: "extract" or "replica"."""
        return "replica" if any(f.capture == "replica" for f in self.findings) else "extract"

    @property
    def uses_sessions(self) -> bool:
        """Does it make a session of TensorFlow 1?"""
        return any(_makes_session(tree) for _, tree in self.modules)


def detect_capture(script: str) -> CaptureDetection:
    """Read the script; what cannot be read is left to running it."""
    modules = list(sources(Path(script)))
    classes = _classes(tree for _, tree in modules)
    return CaptureDetection(modules, classes, [f for path, tree in modules for f in _of_module(path, tree, classes)])


def several_optimizers(script: CaptureDetection) -> bool:
    """Is there a model that is made somewhere, and whose own steps have more than one?"""
    nodes = [node for _, tree in script.modules for node in ast.walk(tree)]
    made = [kind for n in nodes if isinstance(n, ast.Call) for kind in script.classes.get(last_name(n.func), ())]
    return any(len(_own_optimizers(kind, script.classes)) > 1 for kind in made)


def _own_optimizers(kind: ast.ClassDef, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    """The attributes by which a model applies gradients. Another name may be one of these, so it is no further one."""
    bases = _bases(kind, classes)
    if not any(base.endswith("Model") for base in bases):
        return set()
    family = [kind, *(of for base in bases for of in classes.get(base.rpartition(".")[2], ()))]
    calls = [n for of in family for n in ast.walk(of) if isinstance(n, ast.Call) and applies(n)]
    names = {ast.unparse(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)}
    return {name for name in names if name.startswith("self.")}


def own_updates(script: CaptureDetection) -> str:
    """Return the file and line where the script assigns weights by gradients that it takes; "" where it does not."""
    taken, moved = False, ""
    for path, tree in script.modules:
        for call, _, bases in _calls(tree, "", (), script.classes):
            name = last_name(call.func)
            if any(base.endswith(_OF_KERAS) for base in bases):
                continue
            taken |= name == "GradientTape"
            if name in _ASSIGNS and not moved:
                moved = f"{path}:{call.lineno}"
    return moved if taken else ""


def with_own_updates(script: CaptureDetection, *, by_hand: bool) -> CaptureDetection:
    """Return the look with a finding for weights that the script assigns by gradients of its own.

    Args:
        script: What was found otherwise.
        by_hand: The engine divides such a script; else gradients are exchanged at an optimizer alone.

    Raises:
        UserError: The engine does not, and the script trains in no other way.
    """
    moved = own_updates(script)
    if moved and by_hand:
        path, _, line = moved.rpartition(":")
        found = Finding(path, int(line), "replica", "weights assigned by gradients: every rank runs the script")
        return replace(script, findings=[*script.findings, found])
    if moved and not script.findings:
        raise UserError(
            "weights must be moved by an optimizer: workers push gradients where it applies them. "
            f"Received: an assignment at {moved}; use keras.optimizers.SGD, hfdt, or train alone with --capture extract"
        )
    return script


def _makes_session(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Call) and _is_session(node.func) for node in ast.walk(tree))


def _is_session(function: ast.AST) -> bool:
    """TensorFlow's; `requests` and others have a Session too."""
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
            continue  # a function of a module: scipy.optimize's minimize
        if name == "fit" and isinstance(call.func, ast.Attribute) and _may_be_keras(call):
            yield Finding(str(path), call.lineno, "extract", "fit: the model and the data are sent to workers")
        elif name == BATCHWISE:
            yield Finding(str(path), call.lineno, "replica", f"{name}: every rank runs the script")
        elif applies(call):
            owned = any(base.endswith(_OF_KERAS) for base in bases) or (function == "train_step" and bool(bases))
            yield _applying(str(path), call.lineno, name, function, owned)


def _applying(path: str, line: int, name: str, function: str, owned: bool) -> Finding:
    at = f" in {function}" if function else ""
    if owned:
        return Finding(path, line, "extract", f"{name}{at}, a method that fit calls: it goes with the model")
    return Finding(path, line, "replica", f"{name}{at}, outside fit: every rank runs the script")


def _modules(tree: ast.Module) -> set[str]:
    """The names that `import` gives to modules."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _calls(
    node: ast.AST, function: str, bases: tuple[str, ...], classes: Mapping[str, list[ast.ClassDef]]
) -> Iterator[tuple[ast.Call, str, tuple[str, ...]]]:
    """Every call, the function it stands in, and the bases of the class around, theirs included."""
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
    """The classes of all modules by name, and by what an import calls them."""
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
    """Others have a `fit` too (scikit-learn); those with arguments of Keras's loop are Keras's."""
    return bool({k.arg for k in call.keywords} & {"epochs", "batch_size", "callbacks", "validation_data", "verbose"})
