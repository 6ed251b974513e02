"""Metrics in a script's own loop: their state is added over ranks where the script reads the result.

Only what was updated in steps that ranks take in turn: an evaluation loop, which every rank runs whole, is right as it
is. A metric shows what another's step made of it as long as it holds nothing of this rank's own.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.keras.variables import tensor_variable

Sum = Callable[[Sequence[Any], str], list[Any]]  # (tensors, name) -> each added over ranks


class Metrics:
    """Replaces methods of `Metric` objects. A metric's state is taken to begin at zero, as Keras's all do.

    `divided`: is the data at hand that of this rank's step? `alone`: must ranks not wait for each other now? `others`:
    is it data that another rank counts? `unsure`: may only another rank know whether there are parts?
    """

    def __init__(
        self,
        add: Sum,
        divided: Callable[[], bool],
        alone: Callable[[], bool],
        others: Callable[[], bool],
        unsure: Callable[[], bool],
    ) -> None:
        self._add, self._at_part, self._alone = add, divided, alone
        self._of_others, self._unsure = others, unsure
        self._adding = False

    def made(self, original: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
        """In place of Metric.__init__: the object's methods are ours from now on."""
        original(metric, *args, **kwargs)
        kind = type(metric)
        with tf.init_scope():  # now: a tf.function makes variables in its first trace only
            for flag in ("_fdt_divided", "_fdt_own"):  # holds parts, be they another rank's; this rank's, or whole data
                metric.__dict__[flag] = tf.Variable(False, trainable=False)
        metric.__dict__["_fdt_parted"] = False  # has it ever held parts?
        metric.__dict__["_fdt_last"] = None  # what it held before it was reset within a loop
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
        for variable in map(tensor_variable, metric.variables):  # what it has shown of another's
            variable.assign(tf.where(own | ~divided, variable, tf.zeros_like(variable)))
        own.assign(True)
        if self._at_part():
            divided.assign(True)
        return original(metric, *args, **kwargs)

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
        if self._alone():
            return self._of(metric, _left(metric), compute)
        if not self._divided(metric):
            return compute()
        return self._of(metric, self._add(self._counted(metric), f"metric {metric.name}"), compute)

    def _counted(self, metric: Any) -> list[Any]:
        """What this rank adds: nothing of what others count."""
        mine = [tf.identity(v) for v in map(tensor_variable, metric.variables)]
        return mine if metric.__dict__["_fdt_own"].numpy() else [tf.zeros_like(value) for value in mine]

    def _of(self, metric: Any, state: list[Any] | None, compute: Callable[[], Any]) -> Any:
        """The result for `state`, None: for its own."""
        if state is None:
            return compute()
        variables = [tensor_variable(v) for v in metric.variables]
        mine = [tf.identity(v) for v in variables]
        self._adding = True
        try:
            _load(variables, state)
            result = compute()
            result = tf.nest.map_structure(lambda r: tf.identity(r) if tf.is_tensor(r) else r, result)
            _load(variables, mine)
        finally:
            self._adding = False
        return result

    def _divided(self, metric: Any) -> bool:
        """Does the state hold parts? In a graph: will it?"""
        if not tf.executing_eagerly():
            return self._at_part()
        divided = bool(metric.__dict__["_fdt_divided"].numpy())
        if not metric.__dict__["_fdt_parted"] and not self._unsure():
            return False
        parts = float(divided and metric.__dict__["_fdt_own"].numpy())
        return bool(self._add([tf.constant(parts)], f"parts of metric {metric.name}")[0] > 0)


def _bound(method: Any, original: Any, metric: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(original, metric, *args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)


def _unless(own: tf.Variable, update: Any, metric: Any, *args: Any, **kwargs: Any) -> None:
    """Update it, but nothing stays where `own`. It is made anyway, as a metric may be built by its first update."""
    before = {v.ref(): tf.identity(v) for v in map(tensor_variable, metric.variables)}
    update(metric, *args, **kwargs)
    for variable in map(tensor_variable, metric.variables):
        value = before.get(variable.ref(), tf.zeros_like(variable))
        variable.assign(tf.where(own, value, variable))


def _left(metric: Any) -> list[Any] | None:
    """What it held before it was reset, if it holds nothing now: the step between was another's, and left out."""
    if not tf.executing_eagerly() or metric.__dict__["_fdt_divided"].numpy() or metric.__dict__["_fdt_own"].numpy():
        return None
    last: list[Any] | None = metric.__dict__["_fdt_last"]
    return last if last is not None and len(last) == len(metric.variables) else None


def _load(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
