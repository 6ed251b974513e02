"""Watching Keras's fit at no cost a step: a CallbackList that holds nothing but History and one function."""

from collections.abc import Callable
from typing import Any

OnBatch = Callable[[int, Any], bool]  # (index of the last step done, its logs) -> go on?


def listening(keras: Any, model: Any, on_batch: OnBatch, epochs: int, steps: int | None) -> Any:
    """A CallbackList for `model.fit`. `keras`: the flavor's module."""

    class Listening(keras.callbacks.CallbackList):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            pass

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not on_batch(batch, logs):
                model.stop_training = True

    return Listening([], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)
