"""A Keras callback list that notifies a watcher of epochs and steps and adds the engine's logs."""

from collections.abc import Mapping
from typing import Any, Protocol

from fdt.signals import released


class Watcher(Protocol):
    """Receives the events of Keras's callback list; client_shim.remote.Remote implements it."""

    def begun(self) -> None:
        """Called when all callbacks have seen the beginning of training."""

    def epoch_begins(self, epoch: int) -> None:
        """Called before the callbacks see the beginning of `epoch`."""

    def step_done(self) -> None:
        """Called when the callbacks have seen a step; one may have set `stop_training`."""

    def epoch_over(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Called when all callbacks have seen the epoch's logs."""

    def extra(self) -> dict[str, float]:
        """Return the engine's own logs, which callbacks see and History omits."""


def watched_list(keras: Any, callbacks: Any, watcher: Watcher, *, stepwise: bool, **kwargs: Any) -> Any:
    """Return a `keras.callbacks.CallbackList` of `callbacks` that notifies `watcher`.

    Signals raise only inside the callbacks, which are the script's code (fdt/signals.py).

    Args:
        keras: The Keras module that the model belongs to.
        callbacks: The script's callbacks.
        watcher: Receives the events.
        stepwise: Whether to call batch hooks.
        **kwargs: Further arguments of CallbackList.
    """

    class Watched(keras.callbacks.CallbackList):
        def on_train_begin(self, logs: Any = None) -> None:
            with released():
                super().on_train_begin(logs)
            watcher.begun()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            watcher.epoch_begins(epoch)
            with released():
                super().on_epoch_begin(epoch, logs)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if stepwise:
                with released():
                    super().on_train_batch_begin(batch, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if stepwise:
                with released():
                    super().on_train_batch_end(batch, logs)
                watcher.step_done()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            extra = {name: value for name, value in watcher.extra().items() if name not in (logs or {})}
            with released():
                super().on_epoch_end(epoch, {**(logs or {}), **extra})
            for name in extra:
                self.model.history.history.pop(name, None)
            watcher.epoch_over(epoch, logs or {})

        def on_train_end(self, logs: Any = None) -> None:
            with released():
                super().on_train_end(logs)

    return Watched(callbacks, **kwargs)
