"""The `run` command's path for a script that trains by `fit`, and whether its engine starts beside it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import client_shim
from client_shim.preemption import Preemption, preemptible
from client_shim.state import Settings
from fdt.cli import RunRequest, detach, folder_of, kept
from fdt.cli.run import MakeEngine
from fdt.cli.run import run as run_with_engine

if TYPE_CHECKING:
    from fdt.cli.run import Client
    from fdt.report import Reporters
    from fdt.rundir import RunDir
import ast
import re
import sys

from client_shim.replica.syntax import imports, sources

# Libraries that call no model's `fit`. Others (Keras Tuner, scikit-learn with a wrapper, own trainers) may.
_QUIET = {"absl", "cv2", "h5py", "keras", "matplotlib", "mpl_toolkits", "numpy", "pandas", "PIL", "requests", "scipy"}
_QUIET |= {"seaborn", "tensorflow", "tensorflow_datasets", "tf_keras", "tqdm", "yaml"}
_UNSEEN = {"importlib", "pkgutil", "runpy"}  # modules that import other modules by name
_RUN = {"__import__", "compile", "eval", "exec"}  # calls whose code the source does not show


def may_fit(script: str) -> bool:
    """Return False only where all imported code is readable or known not to train, and none of it calls a `fit`."""
    read = dict(sources(script))
    known = (sys.stdlib_module_names - _UNSEEN) | _QUIET
    paths = {path.resolve() for path in read}
    for path, tree in read.items():
        if any(map(_fits, ast.walk(tree))):
            return True
        for each in imports(tree, path, folder_of(script)):
            followed = each.found and all(file.resolve() in paths for file in each.files)
            if not followed and each.top not in known:
                return True
    return False


def _fits(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("fit", "fit_generator")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        return node.func.id in _RUN or (node.func.id == "getattr" and not named)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_fit(node.value)


def _names_fit(text: str) -> bool:
    """Return whether `text` is a name such as "fit" or "model.fit", not prose."""
    return re.search(r"(^|\.)fit(_generator)?($|\()", text) is not None


def run(
    request: RunRequest, script_args: Sequence[str], settings: Settings, make_engine: MakeEngine, *, early: bool = False
) -> int:
    """Run the script with each `fit` of it on the engine; save or detach the run where the request asks for it.

    Args:
        request: The options of the command line.
        script_args: Arguments of the script.
        settings: The command line's decisions about capture.
        make_engine: Makes the engine that trains.
        early: Start the engine before the script even where its source shows no `fit`.

    Returns:
        The script's exit code.
    """
    if detach.due(request):
        return detach.start(request)

    by_fit = settings.own_loops  # `--capture extract` states that training is done by `fit`
    request = replace(request, early=early or by_fit or may_fit(request.script))

    def train(directory: "RunDir | None") -> int:
        preemption = Preemption(request.grace_s)

        def run_script(client: "Client", reporters: "Reporters") -> int:
            return client_shim.run(request.script, script_args, client, settings, reporters, directory, preemption)

        with preemptible(preemption if directory is not None else None):
            return run_with_engine(request, make_engine, run_script)

    return kept(request, script_args, train)
