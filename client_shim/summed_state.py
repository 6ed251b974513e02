"""Whether changes of a metric's state can be added up over workers that update it with different batches.

They can if the change that a batch makes does not depend on the state before it. The first update of a metric of the
script's own is repeated on the same arguments, from its start and from its result; then the state is restored.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from client_shim.script_code import described, of_library, with_inner
from fdt.errors import UserError
from fdt.keras.variables import assignments, call_converted, tensor_variable
from fdt.typing import Model, Tensor

_UNKNOWN, _ADDS, _DEPENDS = 0, 1, 2
_ROUNDING = {2: 0.1, 4: 1e-5, 8: 1e-12}  # by the bytes of a number, relative to the largest one of its variable


class SummedState:
    """The state of one metric, examined in the metric's first update that gives finite numbers.

    Args:
        metric: The metric.
        held: Other variables that an update may assign, and whose changes are added up too.
    """

    def __init__(self, metric: Any, held: Sequence[Any] = ()) -> None:
        self._metric, self._held = metric, [tensor_variable(v) for v in held]
        with tf.init_scope():
            self._verdict = tf.Variable(_UNKNOWN, trainable=False, dtype=tf.int64)

    def check(self) -> None:
        """Raise UserError if the changes do not add up. Not within a graph."""
        if int(self._verdict) == _DEPENDS:
            raise UserError(
                "a metric's state must be a sum over batches, as nfdt's workers add it up; a maximum, a last value or "
                f"a moving average is none. Received: {self._metric.name!r}, {described(self._metric)}; hfdt run and "
                "-np 1 compute it"
            )

    def update(self, run: Callable[[], Any]) -> Any:
        """Update the metric by `run`."""
        if tf.executing_eagerly() and int(self._verdict):
            return run()
        before = {id(v): tf.identity(v) for v in (*self._variables(), *self._held)}
        with assignments() as assigned:
            result = run()
        variables = [*self._variables(), *(v for v in self._held if v.ref() in assigned)]
        start = [before.get(id(v), tf.zeros_like(v)) for v in variables]  # it may have been made just now
        others = [ref.deref() for ref in assigned if not any(ref.deref() is v for v in variables)]
        examine = functools.partial(_examine, run, variables, start, assigned, others)
        attributes = dict(vars(self._metric))
        self._verdict.assign(tf.cond(self._verdict > _UNKNOWN, self._verdict.read_value, examine))
        vars(self._metric).update(attributes)  # instead of tensors of another graph, and counts of repeated updates
        return result

    def _variables(self) -> list[tf.Variable]:
        found = map(tensor_variable, self._metric.variables)
        return [v for v in found if v.dtype.is_floating or v.dtype.is_integer or v.dtype.is_bool]


def watched_states(flavor: str, model: Model, held: Sequence[Any]) -> list[SummedState]:
    """Examine the metrics of a built model that run the script's code, and return their states."""
    return [_watched(flavor, metric, held) for metric in with_inner(model.metrics) if not of_library(metric)]


def _watched(flavor: str, metric: Any, held: Sequence[Any]) -> SummedState:
    state, original = SummedState(metric, held), metric.update_state

    def update_state(*args: Any, **kwargs: Any) -> Any:
        return state.update(lambda: call_converted(flavor, functools.partial(original, *args, **kwargs)))

    metric.__dict__["update_state"] = tf.autograph.experimental.do_not_convert(update_state)
    return state


def _examine(
    run: Callable[[], Any],
    variables: list[tf.Variable],
    start: list[Tensor],
    assigned: Mapping[Any, int],
    others: list[tf.Variable],
) -> Tensor:
    """Return the verdict on `variables`, which `run` has just led from `start` to their values.

    `others`: further variables that `run` assigns; they keep their values.
    """

    def after(state: Sequence[Tensor]) -> list[Tensor]:
        _assign(variables, state)
        run()
        return [tf.identity(v) for v in variables]

    once, kept = ([tf.identity(v) for v in group] for group in (variables, others))
    twice, once_again, twice_again = after(once), after(start), after(once)
    depends = [*map(_depends, start, once, twice, once_again, twice_again)]
    for sign in (-1, 1):  # of a variable that this batch leaves alone
        moved = [
            _moved(v, a, b, sign) if v.ref() in assigned else a for v, a, b in zip(variables, start, once, strict=True)
        ]
        for a, b, begin, end in zip(start, once, moved, after(moved), strict=True):
            depends.append(tf.reduce_all(a == b) & tf.reduce_any(begin != end))
    # A flag is true for all workers if it is for one, and so it is if it is from the start.
    depends += [
        tf.reduce_any(a) for v, a in zip(variables, start, strict=True) if a.dtype.is_bool and v.ref() in assigned
    ]
    _assign([*variables, *others], [*once, *kept])
    settled = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.cast(b, tf.float64))) for b in once])
    verdict = tf.where(tf.reduce_any(depends), _DEPENDS, tf.where(settled, _ADDS, _UNKNOWN))
    return tf.cast(verdict, tf.int64)


def _depends(start: Tensor, once: Tensor, twice: Tensor, once_again: Tensor, twice_again: Tensor) -> Tensor:
    """Return whether the change from `once` to `twice` is not that from `start` to `once`.

    Where repeated updates differ, they are random, and nothing is known.
    """
    if start.dtype.is_bool:
        return tf.reduce_any(once & ~twice)
    share = _ROUNDING[start.dtype.size] if start.dtype.is_floating else 0.0
    a, b, c, b_again, c_again = (tf.cast(state, tf.float64) for state in (start, once, twice, once_again, twice_again))
    bound = share * tf.reduce_max([tf.reduce_max(tf.abs(state)) for state in (a, b, c)])

    def close(x: Tensor, y: Tensor) -> Tensor:
        return tf.reduce_all((x == y) | (tf.abs(x - y) <= bound))

    differ = ~close(b - a, c - b) & close(b, b_again) & close(c, c_again)
    # A sum stays infinite or NaN once it is; a maximum begins at minus infinity.
    return tf.reduce_all(tf.math.is_finite(b)) & (~tf.reduce_all(tf.math.is_finite(a)) | differ)


def _moved(variable: tf.Variable, start: Tensor, once: Tensor, sign: int) -> Tensor:
    """Return a state far from `start` if the update did not change it. What adds nothing changes none."""
    if not variable.dtype.is_floating:
        return ~start if variable.dtype.is_bool else start
    remote = tf.fill(tf.shape(start), tf.constant(sign * float(variable.dtype.max) / 4, variable.dtype))
    return tf.where(tf.reduce_all(start == once), remote, start)


def _assign(variables: Sequence[tf.Variable], values: Sequence[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
