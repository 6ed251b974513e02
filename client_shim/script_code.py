"""Detection of the script's own code in a model."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from client_shim.replica.steps import of_script

_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins")


def script_parts(model: Any) -> list[str]:
    """Return what runs code of the script in a step of a compiled model, as "Gate (train.py:7)".

    Layers, losses and metrics; functions and objects that layers hold, such as those of Lambda, activations and
    regularizers.
    """
    loss = getattr(model, "loss", None)
    losses = loss.values() if isinstance(loss, dict) else loss if isinstance(loss, (list, tuple)) else [loss]
    parts = [getattr(part, "fn", getattr(part, "_fn", part)) for part in (*losses, *with_inner(model.metrics))]
    layers = list(model._flatten_layers())
    parts += [held for layer in layers if of_library(layer) for held in vars(layer).values() if _of_script(held)]
    return [described(part) for part in (*layers, *parts) if not of_library(part)]


def with_inner(metrics: Iterable[Any]) -> list[Any]:
    """Return metrics, and those within Keras's containers and within metrics of tf_keras."""
    return [each for metric in metrics for each in (metric, *getattr(metric, "metrics", ()))]


def of_library(obj: Any) -> bool:
    """Return whether Keras, TensorFlow or Python defines a class, a function, or the class of an object."""
    return str(getattr(obj, "__module__", "builtins")).startswith(_LIBRARIES)


def _of_script(obj: Any) -> bool:
    """Return whether a function, or a callable object's class, is one of the script's."""
    called = obj if hasattr(obj, "__code__") else inspect.getattr_static(type(obj), "__call__", None)
    code = getattr(called, "__code__", None)
    return code is not None and not of_library(obj) and of_script(code.co_filename)


def described(obj: Any) -> str:
    """Return the name of a function, or of an object's class, with the line of its code: "Gate (train.py:7)"."""
    definition = obj if hasattr(obj, "__code__") else type(obj)
    methods = [definition] if hasattr(obj, "__code__") else vars(definition).values()
    code = next((method.__code__ for method in methods if hasattr(method, "__code__")), None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else ""
    return f"{definition.__name__}{place}"
