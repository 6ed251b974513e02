"""Metrics in a script's own loop: their states are summed over ranks where the script reads the result.

Only updates in steps that ranks take in turn are summed. An evaluation loop runs on every rank in full, so its state is
correct already. While a metric holds no updates of this rank, it shows the state after another rank's step.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from client_shim.script_code import of_library
from client_shim.summed_state import SummedState
from fdt.keras.variables import assign, tensor_variable

Sum = Callable[[Sequence[Any], str], list[Any]]  # (tensors, name) -> each tensor summed over ranks


class Metrics:
    """Replaces methods of `Metric` objects; assumes that a metric's state starts at zero, as those of Keras do.

    Args:
        add: Sums tensors over ranks.
        divided: Returns whether the current data are those of this rank's step.
        alone: Returns whether ranks must not wait for each other now.
        others: Returns whether another rank counts the current data.
        unsure: Returns whether only another rank may know that the state is divided.
        several: Whether there are other ranks.
    """

    def __init__(
        self,
        add: Sum,
        divided: Callable[[], bool],
        alone: Callable[[], bool],
        others: Callable[[], bool],
        unsure: Callable[[], bool],
        several: bool = True,
    ) -> None:
        self._add, self._at_part, self._alone = add, divided, alone
        self._of_others, self._unsure, self._several = others, unsure, several
        self._adding = False
        self._made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # metrics

    def variables(self) -> list[tf.Variable]:
        """Return the states of all metrics."""
        return [tensor_variable(v) for metric in list(self._made.values()) for v in metric.variables]

    def made(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
        """Run in place of Metric.__init__ and replace the methods of the new object."""
        original(metric, *args, **kwargs)
        kind, self._made[id(metric)] = type(metric), metric
        with tf.init_scope():  # made now, because a tf.function can make variables only in its first trace
            # "divided": the state has updates of divided steps, also other ranks'. "own": it has updates of this rank,
            # or of undivided data.
            for flag in ("_fdt_divided", "_fdt_own"):
                metric.__dict__[flag] = tf.Variable(False, trainable=False)
        metric.__dict__["_fdt_parted"] = False  # whether it has ever held updates of divided steps
        metric.__dict__["_fdt_last"] = None  # its state before the last reset within a loop
        examined = self._several and not of_library(metric)
        metric.__dict__["_fdt_summed"] = SummedState(metric) if examined else None
        for name, method in (("update_state", self._update), ("result", self._result), ("reset_state", self._reset)):
            metric.__dict__[name] = _bound(method, getattr(kind, name), metric)

    def _update(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        divided, own = metric.__dict__["_fdt_divided"], metric.__dict__["_fdt_own"]
        others = self._of_others()
        if others or self._at_part():
            metric.__dict__["_fdt_parted"] = True
        if others:
            divided.assign(True)
            return _unless(own, original, metric, *args, **kwargs)
        for variable in map(tensor_variable, metric.variables):  # clears the state shown after another rank's step
            variable.assign(tf.where(own | ~divided, variable, tf.zeros_like(variable)))
        own.assign(True)
        summed = metric.__dict__["_fdt_summed"]
        if not self._at_part():
            return original(metric, *args, **kwargs)
        divided.assign(True)
        update = functools.partial(original, metric, *args, **kwargs)
        return update() if summed is None else summed.update(update)

    def _reset(self, original: Any, metric: Any) -> Any:
        divided, own = metric.__dict__["_fdt_divided"], metric.__dict__["_fdt_own"]
        if tf.executing_eagerly():
            if not self._alone():
                metric.__dict__["_fdt_last"] = None
            elif divided.numpy() or own.numpy():
                metric.__dict__["_fdt_last"] = [tf.identity(v) for v in map(tensor_variable, metric.variables)]
        divided.assign(False)
        own.assign(False)
        return original(metric)

    def _result(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        compute = functools.partial(original, metric, *args, **kwargs)
        if self._adding:
            return compute()
        check_summed([metric])
        if self._alone():
            return self._of(metric, _left(metric), compute)
        if not self._divided(metric):
            return compute()
        return self._of(metric, self._add(self._counted(metric), f"metric {metric.name}"), compute)

    def _counted(self, metric: Any) -> list[Any]:
        """Return this rank's summands: its state, or zeros where only other ranks count."""
        mine = [tf.identity(v) for v in map(tensor_variable, metric.variables)]
        return mine if metric.__dict__["_fdt_own"].numpy() else [tf.zeros_like(value) for value in mine]

    def _of(self, metric: Any, state: list[Any] | None, compute: Callable[[], Any]) -> Any:
        """Return the result for `state`; None: for the metric's own state."""
        if state is None:
            return compute()
        variables = [tensor_variable(v) for v in metric.variables]
        mine = [tf.identity(v) for v in variables]
        self._adding = True
        try:
            assign(variables, state)
            result = compute()
            result = tf.nest.map_structure(lambda r: tf.identity(r) if tf.is_tensor(r) else r, result)
            assign(variables, mine)
        finally:
            self._adding = False
        return result

    def _divided(self, metric: Any) -> bool:
        """Return whether the state has updates of divided steps; in a graph, whether it will have."""
        if not tf.executing_eagerly():
            return self._at_part()
        divided = bool(metric.__dict__["_fdt_divided"].numpy())
        if not metric.__dict__["_fdt_parted"] and not self._unsure():
            return False
        parts = float(divided and metric.__dict__["_fdt_own"].numpy())
        return bool(self._add([tf.constant(parts)], f"parts of metric {metric.name}")[0] > 0)


def check_summed(metrics: Iterable[Any]) -> None:
    """Raise UserError if the state of one of the script's own metrics is no sum; not within a graph."""
    states = [metric.__dict__.get("_fdt_summed") for metric in metrics] if tf.executing_eagerly() else []
    for state in filter(None, states):
        state.check()


def _bound(method: Any, original: Any, metric: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(original, metric, *args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)


def _unless(own: tf.Variable, update: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Update the metric, and undo the update where `own` is true.

    The update runs in both cases, because a metric may be built by its first update.
    """
    before = {v.ref(): tf.identity(v) for v in map(tensor_variable, metric.variables)}
    update(metric, *args, **kwargs)
    for variable in map(tensor_variable, metric.variables):
        value = before.get(variable.ref(), tf.zeros_like(variable))
        variable.assign(tf.where(own, value, variable))


def _left(metric: Any) -> list[Any] | None:
    """Return the state before the last reset if the metric holds no updates now, otherwise None.

    The step since the reset belonged to another rank and was left out.
    """
    if not tf.executing_eagerly() or metric.__dict__["_fdt_divided"].numpy() or metric.__dict__["_fdt_own"].numpy():
        return None
    last: list[Any] | None = metric.__dict__["_fdt_last"]
    return last if last is not None and len(last) == len(metric.variables) else None
