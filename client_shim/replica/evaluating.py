"""Detection of evaluation loops inside a training loop; they have data of their own, which belong to no step."""

import ast
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from client_shim.replica.steps import Site, of_script, script_frames
from client_shim.replica.syntax import last_name, loops_around, names_of, resolved

_BY_NAME = ("next", "predict", "predict_on_batch", "")  # "": the called expression is no name
_around: dict[tuple[CodeType, int], list[Any]] = {}
_known: dict[tuple[CodeType, int, int], bool] = {}


def evaluates(within: Site) -> bool:
    """Return whether an evaluation loop is running inside the training loop `within`.

    A loop over metrics, or over outputs, belongs to the step.
    """
    for frame in script_frames():
        line = frame.f_code, frame.f_lineno
        if line not in _around:
            _around[line] = loops_around(frame)
        for loop in _around[line]:
            if frame.f_code is within.code and loop.lineno == within.first:
                return False
            key = frame.f_code, loop.lineno, loop.col_offset
            if key not in _known:
                _known[key] = _has_data(loop, frame)
            if _known[key]:
                return True
    return True  # no frame of the training loop is left, so it is over


def _has_data(loop: Any, frame: FrameType) -> bool:
    """Return whether the loop reads batches, or calls something that may be a model."""
    names = names_of(frame)
    read = ast.walk(loop.iter) if isinstance(loop, ast.For) else ()
    if any(hasattr(resolved(node, names), "element_spec") for node in read):
        return True  # a dataset or its iterator
    calls = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return any(last_name(function) in _BY_NAME or _may_be_model(function, names) for function in calls)


def _may_be_model(function: ast.AST, names: Mapping[str, Any]) -> bool:
    """Return whether this is a model, its method, a tf.function or a function of the script's own, and no metric."""
    value = resolved(function, names)
    owner = getattr(value, "__self__", value)
    if not callable(value) or hasattr(owner, "update_state"):
        return False
    if hasattr(owner, "trainable_variables") or hasattr(value, "_python_function"):
        return True
    code = getattr(value if hasattr(value, "__code__") else type(value).__call__, "__code__", None)
    return code is not None and of_script(code.co_filename)
