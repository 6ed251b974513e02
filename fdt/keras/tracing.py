"""Tracing of a model's training step: to build the model, and as its Keras calls a script's train_step."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.compat.graphs import ag_ctx, api


def call(flavor: str, function: Any, *args: Any) -> Any:
    """Return `function(*args)`. Only the script's function is converted, not this project's code around it."""
    if flavor != "tf_keras" or tf.executing_eagerly():
        return function(*args)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
        return api.tf_convert(function, ag_ctx.control_status_ctx())(*args)


def trace_step(step: Callable[[Any], Any], spec: Any) -> None:
    """Trace `step(data)`; `spec` is (x, y, sample_weight) of TensorSpecs, with None where there is no tensor."""
    flat = [s for s in tf.nest.flatten(spec) if s is not None]

    def traced(*leaves: Any) -> Any:
        remaining = iter(leaves)
        data = tf.nest.map_structure(lambda s: None if s is None else next(remaining), spec)
        step(data)

    tf.function(traced, autograph=False).get_concrete_function(*flat)


def trace_unbuilt(model: Any, spec: Any, parts: Sequence[Any]) -> None:
    """Build compiled losses or metrics that a custom training step leaves unbuilt, as validation would."""
    if any(part is not None and not part.built for part in parts):
        with contextlib.suppress(Exception):  # a test_step may fail in a model that is never evaluated
            trace_step(model.test_step, spec)


class Traced:
    """The models that were traced since they were last compiled."""

    def __init__(self) -> None:
        self._compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def add(self, model: Any) -> None:
        self._compiled[model] = getattr(model, "_compile_config", None)

    def holds(self, model: Any) -> bool:
        return model in self._compiled and self._compiled[model] is getattr(model, "_compile_config", None)
