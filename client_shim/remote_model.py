"""A model whose train function and `evaluate` call the engine, while Keras's own loop runs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from client_shim.call import FitCall
from client_shim.changed_objects import refuse_changed
from client_shim.job import CapturedFit
from client_shim.remote import Remote
from client_shim.replica.steps import where
from fdt.errors import UserError
from fdt.keras import attribute
from fdt.signals import released

_STOPPED = (
    "a callback must not set stop_training before an epoch begins (on_epoch_begin): Keras would train one more step, "
    "and workers train whole epochs; set it in on_epoch_end, or give fit a callback with on_train_batch_end"
)
_REPLACED = ("train_function", "make_train_function", "evaluate")


@contextlib.contextmanager
def replaced(fit: CapturedFit, remote: Remote, stepwise: bool, evaluate: Callable[..., Any]) -> Iterator[None]:
    """Within the context, the model trains on the engine, and `evaluate` takes the place of its own."""
    call, model, feed = fit.call, fit.call.model, fit.captured.feed
    count = call.flavor.steps_per_execution(model)

    def train_function(iterator: Any) -> dict[str, float]:
        if stepwise:
            return remote.train_steps(count)
        if model.stop_training:
            raise UserError(f"{_STOPPED}. Received: fit at {where()}")
        logs = remote.train_epoch()
        model.stop_training = model.stop_training or (feed is not None and feed.ran_out())
        return logs

    def make_train_function(force: bool = False) -> Callable[..., Any]:
        if force:  # Keras would trace the step anew, with what a callback has changed
            with unreplaced(model):
                refuse_changed(call, fit.job.program.digest, "and makes Keras trace it again", trained=True)
        return train_function

    with contextlib.ExitStack() as stack:
        stack.enter_context(attribute(model, "train_function", train_function))
        stack.enter_context(attribute(model, "make_train_function", make_train_function))
        stack.enter_context(attribute(model, "evaluate", evaluate))
        yield


@contextlib.contextmanager
def unreplaced(model: Any) -> Iterator[None]:
    """Within, `model` has Keras's own functions again, because a callback trains it."""
    taken = {name: model.__dict__.pop(name) for name in _REPLACED if name in model.__dict__}
    model.__dict__["train_function"] = None
    try:
        yield
    finally:
        model.__dict__.update(taken)


def evaluate_remotely(call: FitCall, remote: Remote, stepwise: bool) -> Callable[..., Any]:
    """Return an `evaluate` that asks the engine when Keras calls it for the validation of this `fit`."""
    original = call.model.evaluate

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("_use_cached_eval_dataset") or (stepwise and remote.written()):
            with released():
                return original(*args, **kwargs)  # the script's own call, or weights that only the client has
        callbacks = kwargs["callbacks"]
        with released():
            callbacks.on_test_begin()
        logs = call.flavor.result(call.model, remote.evaluate())
        with released():
            callbacks.on_test_end(logs)
        return logs

    return evaluate
