"""Metrics in a script's own loop: their state is added over ranks where the script reads the result.

Only what was updated with parts of batches: an evaluation loop, which every rank runs whole, is right as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.keras.variables import tensor_variable

Sum = Callable[[Sequence[Any], str], list[Any]]  # (tensors, name) -> each added over ranks


class Metrics:
    """Replaces methods of `Metric` objects. A metric's state is taken to begin at zero, as Keras's all do.

    `divided`: is a part of the data at hand? `alone`: must ranks not wait for each other now? `others`: is it data that
    another rank counts?
    """

    def __init__(
        self,
        add: Sum,
        divided: Callable[[], bool],
        alone: Callable[[], bool] = lambda: False,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        self._add, self._at_part, self._alone, self._of_others = add, divided, alone, others
        self._adding = False

    def made(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
        """In place of Metric.__init__: the object's methods are ours from now on."""
        original(metric, *args, **kwargs)
        kind = type(metric)
        with tf.init_scope():  # now: a tf.function makes variables in its first trace only
            metric.__dict__["_fdt_divided"] = tf.Variable(False, trainable=False)
        for name, method in (("update_state", self._update), ("result", self._result), ("reset_state", self._reset)):
            metric.__dict__[name] = _bound(method, getattr(kind, name), metric)

    def _update(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        if self._of_others():
            return _undone(original, metric, *args, **kwargs)
        if self._at_part():
            metric.__dict__["_fdt_divided"].assign(True)
        return original(metric, *args, **kwargs)

    def _reset(self, original: Any, metric: Any) -> Any:
        metric.__dict__["_fdt_divided"].assign(False)
        return original(metric)

    def _result(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        if self._adding or self._alone() or not self._divided(metric):
            return original(metric, *args, **kwargs)
        variables = [tensor_variable(v) for v in metric.variables]
        mine = [tf.identity(v) for v in variables]
        self._adding = True
        try:
            _load(variables, self._add(mine, f"metric {metric.name}"))
            result = original(metric, *args, **kwargs)
            result = tf.nest.map_structure(lambda r: tf.identity(r) if tf.is_tensor(r) else r, result)
            _load(variables, mine)
        finally:
            self._adding = False
        return result

    def _divided(self, metric: Any) -> bool:
        """Does the state hold parts? In a graph: will it?"""
        if not tf.executing_eagerly():
            return self._at_part()
        return bool(metric.__dict__["_fdt_divided"].numpy())


def _bound(method: Any, original: Any, metric: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(original, metric, *args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)


def _undone(update: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
    """It is made, as a metric may be built by its first update, but nothing stays of it."""
    before = [(v, tf.identity(v)) for v in map(tensor_variable, metric.variables)]
    update(metric, *args, **kwargs)
    for variable, value in before:
        variable.assign(value)


def _load(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
