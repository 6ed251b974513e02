"""The patches of a recorded run: they report events of TensorFlow and Keras to the recorder."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.call import FitCall
from client_shim.verify.comparable import make_comparable
from client_shim.verify.recorder import Recorder
from fdt import compat
from fdt.compat.tensorflow import BaseResourceVariable, polymorphic_function
from fdt.patches import Patch

_ASSIGNS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update", "scatter_nd_update")


def of_tensorflow(recorder: Recorder) -> list[Patch]:
    """Return the patches of tapes, functions, variables and assignments."""
    owner = BaseResourceVariable
    return [
        Patch(owner, "__init__", functools.partial(_made, recorder)),
        *(Patch(owner, name, functools.partial(_assigned, recorder)) for name in _ASSIGNS),
        Patch(tf.GradientTape, "__enter__", functools.partial(_tape, recorder)),
        Patch(tf.GradientTape, "gradient", functools.partial(_gradient, recorder)),
        Patch(polymorphic_function.Function, "__call__", functools.partial(_stepped, recorder, _loss_in)),
    ]


def of_keras(recorder: Recorder, flavor: str) -> list[Patch]:
    """Return the patches of Keras's own training. `flavor`: "keras" or "tf_keras"."""
    private = compat.of(flavor)
    owner = private.Trainer
    return [
        Patch(owner, "fit", functools.partial(_fit, recorder)),
        Patch(importlib.import_module(flavor).mixed_precision.Policy, "__init__", functools.partial(_policy, recorder)),
        Patch(owner, "train_on_batch", functools.partial(_stepped, recorder, _of_batch)),
        *(Patch(owner, name, functools.partial(_evaluated, recorder)) for name in ("evaluate", "predict")),
        *(Patch(kind, private.APPLY, functools.partial(_stepped, recorder, None)) for kind in private.OPTIMIZERS),
    ]


# -- TensorFlow ------------------------------------------------------------------------------------------------------
def _made(recorder: Recorder, original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    original(variable, *args, **kwargs)
    if type(variable).__name__ != "_UnreadVariable":  # the class of `assign`'s result
        recorder.variables.made(variable)


def _assigned(recorder: Recorder, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(variable, *args, **kwargs)
    if _is_event(recorder):
        recorder.changed()
    return result


def _tape(recorder: Recorder, original: Any, tape: Any) -> Any:
    if _is_event(recorder):
        recorder.begin()
    recorder.taped()
    return original(tape)


def _gradient(recorder: Recorder, original: Any, tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_event(recorder):
        return original(tape, target, *args, **kwargs)
    with recorder.within():  # an engine may call tf.functions of its own
        gradient = original(tape, target, *args, **kwargs)
    recorder.changed(_loss_in(tape, target))
    return gradient


Losses = Callable[[Any, Any], dict[str, float]]  # of what was called, and of its result


def _stepped(recorder: Recorder, losses: Losses | None, original: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call that is a whole step, with the losses of its result; without `losses`, a step's update."""
    if not _is_event(recorder):
        return original(called, *args, **kwargs)
    if losses is not None:
        recorder.begin()
    with recorder.within():
        result = original(called, *args, **kwargs)
    recorder.changed(losses(called, result) if losses is not None else None)
    return result


def _is_event(recorder: Recorder) -> bool:
    return recorder.outermost() and bool(tf.executing_eagerly())


def _loss_in(_: Any, result: Any) -> dict[str, float]:
    """Return the first float scalar among the results of a step, as its loss."""
    leaves = [leaf for leaf in tf.nest.flatten(result) if isinstance(leaf, tf.Tensor)]
    scalars = [leaf for leaf in leaves if leaf.dtype.is_floating and leaf.shape.rank == 0]
    return {"loss": float(scalars[0].numpy())} if scalars else {}


# -- Keras -----------------------------------------------------------------------------------------------------------
def _evaluated(recorder: Recorder, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_event(recorder):
        return original(model, *args, **kwargs)
    recorder.begin()
    with recorder.within():
        return original(model, *args, **kwargs)


def _of_batch(model: Any, result: Any) -> dict[str, float]:
    """Return the numbers that train_on_batch returns, by name."""
    if isinstance(result, dict):
        return _numbers(result)
    values = result if isinstance(result, (list, tuple)) else [result]
    return _numbers(dict(zip(["loss", *model.metrics_names[1:]], values, strict=False)))


def _policy(recorder: Recorder, original: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
    original(policy, *args, **kwargs)
    recorder.variables.policy_made(policy.compute_dtype)


def _fit(recorder: Recorder, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_event(recorder):
        return original(model, *args, **kwargs)
    recorder.begin()
    call = FitCall.of(original, model, args, kwargs)
    make_comparable(call, recorder.note)
    call.arguments.update(verbose=0, callbacks=[_watcher(recorder, call.flavor.keras), *call.callbacks])
    with recorder.within():
        return call.local()


def _watcher(recorder: Recorder, keras: Any) -> Any:
    """Return a callback of `fit` that makes each batch an event."""

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            recorder.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            if getattr(optimizer, "gradient_accumulation_steps", None) and not int(optimizer.iterations):
                recorder.accumulated()
            recorder.changed(_numbers(logs or {}))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            recorder.changed({f"epoch {name}": value for name, value in _numbers(logs or {}).items()})

    return Watcher()


def _numbers(logs: Any) -> dict[str, float]:
    """Return the single numbers among `logs`."""
    return {str(name): float(value) for name, value in logs.items() if np.ndim(value) == 0}
