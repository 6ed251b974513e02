"""`fit` in a replica script: every worker runs Keras's own loop and trains on every n-th batch.

All workers synchronise at the end of an epoch: metrics are summed, and validation and callbacks read rank 0's weights
and logs on every worker. So they decide alike, and a stop by one callback stops all workers.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.metric_state import check_summed
from client_shim.script_code import with_inner
from fdt.data.source import rows
from fdt.keras import flavor_of, named
from fdt.keras.variables import call_converted
from fdt.patches import Patch, patched, replace
from fdt.process_group import ReplicaGroup
from nfdt.replica.exchange import in_order
from nfdt.replica.round_robin import RoundRobin

KIND = "fit"  # `train_on_batch` counts its turns separately


class FitHooks:
    """Patches of `fit`. `count` receives the number of samples of this worker's batches; all workers call `meet`."""

    def __init__(
        self, turns: RoundRobin, group: ReplicaGroup, count: Callable[[int], None], meet: Callable[[], None]
    ) -> None:
        self._turns, self._group, self._count, self._meet = turns, group, count, meet
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()  # Keras's train functions that count samples
        self._fitted: list[Any] = []  # models whose `fit` runs now

    def patches(self, flavor: str) -> list[Patch]:
        """Return the patches for `flavor`, "keras" or "tf_keras"."""
        return [Patch(named(flavor).keras.callbacks.CallbackList, "on_epoch_end", self._epoch_end)]

    @contextlib.contextmanager
    def in_turns(self, model: Any) -> Iterator[None]:
        """Divide the batches of `model.fit` within the context."""
        if any(model is each for each in self._fitted):
            yield  # a callback's
            return
        self._turns.forget(model, KIND)
        patches = [
            Patch(model, "make_train_function", partial(self._make, model)),
            Patch(model, "train_step", partial(self._step, flavor_of(model).name)),
            Patch(model, "evaluate", self._evaluate),
        ]
        if model.train_function not in self._made:
            model.train_function = None
        self._fitted.append(model)
        try:
            with patched(patches), contextlib.ExitStack() as stack:
                if model.jit_compile:  # XLA cannot compile an exchange
                    replace(stack, model, "jit_compile", False)
                yield
        finally:
            self._fitted.pop()
            if isinstance(model.train_function, _Divided):
                model.train_function = model.train_function.made  # the next fit does not trace it again

    def _make(self, model: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        made = model.train_function if made is None else made  # Keras 3 only stores it, tf_keras also returns it
        if not isinstance(made, _Divided):
            self._made.add(made)
            made = _Divided(made, self._turns, model)
        model.train_function = made
        return made

    def _step(self, flavor: str, original: Any, data: Any) -> Any:
        if self._turns.kind == KIND and self._turns.now() == "mine":
            in_order(self._counted, [tf.cast(rows(data), tf.float32)])
        return call_converted(flavor, original, data)

    def _counted(self, samples: Any) -> Any:
        self._count(int(samples))
        return samples

    def _evaluate(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._meet()
        return original(*args, **kwargs)

    def _epoch_end(self, original: Any, callbacks: Any, epoch: int, logs: Any = None) -> Any:
        model = callbacks.model
        if not any(model is each for each in self._fitted):
            return original(callbacks, epoch, logs)
        self._meet()
        logs = {} if logs is None else logs
        rank_0s = self._group.broadcast(dict(_numbers(logs)), "the end of an epoch")
        if self._group.rank:
            logs.update(rank_0s)
        original(callbacks, epoch, logs)
        stops = np.array([float(bool(model.stop_training))])
        model.stop_training = bool(self._group.all_reduce(stops, "stop_training")[0])


class _Divided:
    """Replaces the function that `fit` calls for a batch, or for `steps_per_execution` batches."""

    def __init__(self, made: Any, turns: RoundRobin, model: Any) -> None:
        self.made, self._turns, self._model = made, turns, model

    def __call__(self, iterator: Any) -> Any:
        if self._turns.calling:  # a callback's `train_on_batch`
            return self.made(iterator)
        ran = []

        def run() -> Any:
            ran.append(True)
            return self.made(iterator)

        logs = self._turns.call(self._model, None, run, KIND)
        if not ran:
            _pass_over(iterator, _at_once(self._model))
        check_summed(with_inner(self._model.metrics))
        return logs


def _numbers(logs: Any) -> Iterator[tuple[str, float]]:
    """Yield the logs that callbacks may use for decisions."""
    for name, value in logs.items():
        if not np.ndim(value) and isinstance(number := np.asarray(value).item(), (int, float)):
            yield name, number


def _at_once(model: Any) -> int:
    """Return the number of batches that one call of the train function takes."""
    steps = getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", None)
    return 1 if steps is None else int(steps)


def _pass_over(iterator: Any, batches: int) -> None:
    """Skip up to `batches` batches. Raises StopIteration if none is left."""
    for i in range(batches):
        try:
            next(iterator)
        except StopIteration:
            if not i:
                raise
            return
