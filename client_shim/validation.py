"""Keras's own validation in the client, on data that only the client can draw.

A generator continues from one validation to the next, also over the end of a process that is resumed.
"""

from typing import Any

from client_shim.call import FitCall
from client_shim.capture import arrays, feeds
from client_shim.capture.data import Captured, FitData, unpacked
from client_shim.resume import randomness
from fdt.signals import released

_LOOPS = ("_eval_epoch_iterator", "_eval_data_handler")  # Keras 3, tf_keras
QUEUES = ("workers", "use_multiprocessing", "max_queue_size")  # tf_keras


class ClientValidation:
    """The validations of one `fit`.

    Args:
        call: The call of `fit`.
        captured: The data of the call.
        first: The first epoch to train. The batches of the validations before it, which an earlier process made, are
            drawn before the next one.
    """

    def __init__(self, call: FitCall, captured: Captured, first: int = 0) -> None:
        self._call, self._data = call, captured.validation_data
        self._original = call.model.evaluate
        sent = captured.validation is not None or self._data is None
        self._draws = not (sent or arrays.can_take(call.flavor.name, *unpacked(self._data)))
        self._loop: Any = None
        self._plan: feeds.FeedPlan | None = None
        epochs = range(call.arguments["initial_epoch"] or 0, first if self._draws else 0)
        self._missed = sum(bool(call.model._should_eval(each, call.arguments["validation_freq"])) for each in epochs)

    def skip(self) -> None:
        """Draw the batches of the missed validations of a `fit` that has ended before."""
        if self._missed:
            arguments = self._call.arguments
            x, y, sample_weight = unpacked(self._data)
            given = {name: arguments[name] for name in QUEUES if name in arguments}
            size = arguments["validation_batch_size"] or arguments["batch_size"]
            steps = arguments["validation_steps"]
            data = FitData(x, y, sample_weight, size, steps, shuffle=False, model=self._call.model, **given)
            self._plan = feeds.plan(self._call.flavor.name, data)
            self._draw_missed()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Replace `model.evaluate` within `fit`."""
        cached = bool(kwargs.get("_use_cached_eval_dataset"))
        if cached and self._draws:
            self._prepare()
        with released():
            result = self._original(*args, **kwargs)
        if cached and self._plan is not None:
            self._plan.draw_ahead()
        return result

    def _prepare(self) -> None:
        """Take Keras's own loop over the data, which it makes before the first validation of a `fit`."""
        loop = next((getattr(self._call.model, name, None) for name in _LOOPS if hasattr(self._call.model, name)), None)
        if loop is not None and loop is not self._loop:
            self._loop, self._plan = loop, feeds.of_loop(loop)
            self._draw_missed()

    def _draw_missed(self) -> None:
        assert self._plan is not None
        before = randomness.states()
        while self._missed:
            self._plan.skip(1)
            self._missed -= 1
        randomness.restore(before)
