"""A Keras CallbackList that holds only History and one function, so that watching `fit` adds no cost to a step."""

from collections.abc import Callable
from typing import Any

OnBatch = Callable[[int, Any], bool]  # (index of the last finished step, its logs) -> whether to continue


def listening(keras: Any, model: Any, on_batch: OnBatch, epochs: int, steps: int | None) -> Any:
    """Return a CallbackList for `model.fit` that calls `on_batch`. `keras` is the flavor's module."""

    class Listening(keras.callbacks.CallbackList):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            pass

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not on_batch(batch, logs):
                model.stop_training = True

    return Listening([], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)
