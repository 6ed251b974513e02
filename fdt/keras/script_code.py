"""Detection of the script's own code in a model."""

from typing import Any

_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins")


def runs_script_code(model: Any) -> bool:
    """Return whether a step of the compiled `model` runs code of the script: of a layer, a loss or a metric."""
    loss = getattr(model, "loss", None)
    losses = loss.values() if isinstance(loss, dict) else loss if isinstance(loss, (list, tuple)) else [loss]
    metrics = [each for metric in model.metrics for each in (metric, *getattr(metric, "metrics", ()))]
    parts = [getattr(part, "fn", getattr(part, "_fn", part)) for part in (*losses, *metrics)]
    return not all(map(of_library, (*model._flatten_layers(), *parts)))


def of_library(obj: Any) -> bool:
    """Return whether Keras, TensorFlow or Python defines a class, a function, or the class of an object."""
    return str(getattr(obj, "__module__", "builtins")).startswith(_LIBRARIES)
