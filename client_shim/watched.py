"""Keras's callback list, watched: it says which epoch begins, adds the engine's logs, and hears of the early end."""

from collections.abc import Mapping
from typing import Any, Protocol

from fdt.cli.signals import released


class Watcher(Protocol):
    """What wants to know (client_shim/remote.py)."""

    def begun(self) -> None:
        """All callbacks have seen the beginning of training."""
        ...

    def epoch_begins(self, epoch: int) -> None: ...

    def step_done(self) -> None:
        """Callbacks have seen a step; one may have set `stop_training`."""
        ...

    def epoch_over(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """All callbacks have seen the epoch's logs."""
        ...

    def extra(self) -> dict[str, float]:
        """Logs of the engine's own for callbacks, kept out of History."""
        ...


def watched_list(keras: Any, callbacks: Any, watcher: Watcher, *, stepwise: bool, **kwargs: Any) -> Any:
    """A `keras.callbacks.CallbackList` of `callbacks` that tells `watcher`. Batch hooks are called if `stepwise`.

    Signals raise in the callbacks, which are the script's, and nowhere else (fdt/cli/signals.py).
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
