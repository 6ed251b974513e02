"""The lines of the script, or of a package, that made the operations of a traced step; Keras's own have none."""

import re
from pathlib import Path
from typing import Any

from client_shim.replica.steps import of_script
from client_shim.script import OUR_FOLDERS

_NODE = re.compile(r"{{node ([^}]+)}}")  # in TensorFlow's message
_GRADIENTS = ("/eager/backprop.py", "/ops/gradients_util.py")  # their operations repeat those of the forward pass
# These run what a script put between a functional model's layers: keras.ops, and tf_keras's layers of TensorFlow's.
_GIVEN_BY_SCRIPT = ("/src/ops/function.py", "/src/layers/core/tf_op_layer.py")
_FOR_ANY_CALLER = (
    *("/src/ops/", "/src/backend/", "/src/backend.py", "/src/utils/", "/src/random/"),
    "/src/models/functional.py",
)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")
# Their frames lie between Keras's own. The losses and layers of any other package are checked as the script's are.
_TRUSTED = {"absl", "horovod", "keras", "ml_dtypes", "numpy", "optree", "tensorflow", "tf_keras", "tree", "wrapt"}
# Keras's own functions whose result for a row depends on other rows: files and names. They are compared as a script's.
_MIX_ROWS = {
    ("losses.py", "dice"),
    ("losses.py", "tversky"),
    ("losses.py", "circle"),
    ("mel_spectrogram.py", "_dbscale"),
    ("equalization.py", "_equalize_channel"),
}


def line_of_script(op: Any) -> str:
    """Return the script's line that made the operation, or a package's that Keras called; "" for Keras and gradients.

    The operations of a functional model have no line of the script: its layers were called before.
    """
    package = ""
    for frame in reversed(op.traceback or ()):
        path = frame.filename
        if "/tensorflow/" in path:
            if path.endswith(_GRADIENTS):
                return ""
        elif of_script(path):
            return f"{Path(path).name}:{frame.lineno}"
        elif path.endswith(_GIVEN_BY_SCRIPT):
            return "an operation between layers"
        elif "keras/src/" in path:
            if (Path(path).name, frame.name) in _MIX_ROWS:
                return f"{Path(path).name}:{frame.lineno}"
            if not any(part in path for part in _FOR_ANY_CALLER):
                return package
        elif not package and _of_package(path):
            package = f"{Path(path).name}:{frame.lineno}"
    return ""


def _of_package(path: str) -> bool:
    found = _PACKAGE.search(path)
    return found is not None and found[1] not in _TRUSTED and not path.startswith(OUR_FOLDERS)


def made_by_script(graph: Any) -> bool:
    """Return whether a line of the script made some operation of the graph, or of a function that the graph calls."""
    called = (getattr(function, "graph", None) for function in graph._functions.values())  # TensorFlow 1's have none
    return any(line_of_script(op) for each in (graph, *called) if each is not None for op in each.get_operations())


def failed_line(graph: Any, error: Exception) -> str:
    """Return the script's line that made the operation of the graph which an error names; "" if it names none."""
    names = set(_NODE.findall(str(error))[-1:])
    return next((line for op in graph.get_operations() if op.name in names and (line := line_of_script(op))), "")
