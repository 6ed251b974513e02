"""A Keras callback list that notifies a watcher of epochs and steps and adds the engine's logs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdt.signals import released

if TYPE_CHECKING:
    from client_shim.remote import Remote


def watched_list(
    keras: Any, callbacks: Any, watcher: "Remote", *, stepwise: bool, trained: Mapping[str, Any], **kwargs: Any
) -> Any:
    """Return a `keras.callbacks.CallbackList` of `callbacks` that notifies `watcher`.

    Signals raise only inside the callbacks, which are the script's code (fdt/signals.py).

    Args:
        keras: The Keras module that the model belongs to.
        callbacks: The script's callbacks.
        watcher: Receives the events.
        stepwise: Whether to call batch hooks.
        trained: The logs of the last epoch that an interrupted process trained.
        **kwargs: Further arguments of CallbackList.
    """
    return _watched(keras.callbacks.CallbackList)(watcher, stepwise, trained, callbacks, **kwargs)


def _watched(base: Any) -> Any:
    class Watched(base):  # the CallbackList of the Keras that is used
        def __init__(self, watcher: "Remote", stepwise: bool, trained: Any, callbacks: Any, **kwargs: Any) -> None:
            self._watcher, self._stepwise, self._trained = watcher, stepwise, trained
            super().__init__(callbacks, **kwargs)

        def on_train_begin(self, logs: Any = None) -> None:
            with released():
                super().on_train_begin(logs)
            self._watcher.begun()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._watcher.epoch_begins(epoch)
            with released():
                super().on_epoch_begin(epoch, logs)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self._stepwise:
                with released():
                    super().on_train_batch_begin(batch, logs)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self._stepwise:
                with released():
                    super().on_train_batch_end(batch, logs)
                self._watcher.step_done()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            extra = {name: value for name, value in self._watcher.extra().items() if name not in (logs or {})}
            with released():
                super().on_epoch_end(epoch, {**(logs or {}), **extra})
            for name in extra:
                self.model.history.history.pop(name, None)
            self._watcher.epoch_over(epoch, logs or {})

        def on_train_end(self, logs: Any = None) -> None:
            with released():
                super().on_train_end(logs or dict(self._trained))  # all epochs may be an interrupted process's

    return Watched
