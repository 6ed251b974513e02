"""Whether changes of a metric's state can be added up over workers that update it with different batches.

They can if the change that a batch makes does not depend on the state before it. The first update of a metric of the
script's own, and the first one that changes a variable, are repeated on the same arguments, from their start and from
their result; then the state is restored. A variable that compensates for rounding (Kahan's) depends on the state, but
the metric's result does not.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from client_shim.script_code import described, of_library, with_inner
from fdt.errors import UserError
from fdt.keras.variables import assign, assignments, call_converted, tensor_variable
from fdt.typing import Model, Tensor

_UNKNOWN, _DEPENDS, _BEGUN = 0, -1, 1 << 62  # verdicts; others have _BEGUN and a bit for each examined variable
_ROUNDING = {2: 0.1, 4: 1e-5, 8: 1e-12}  # by the bytes of a number, relative to the largest one of its variable


class SummedState:
    """The state of one metric. Each variable is examined in the first update that changes it to finite numbers.

    Args:
        metric: The metric.
        held: Other variables that an update may assign, and whose changes are added up too.
        flavor: "keras" or "tf_keras".
    """

    def __init__(self, metric: Any, held: Sequence[Any] = (), flavor: str = "keras") -> None:
        self._result = functools.partial(call_converted, flavor, functools.partial(type(metric).result, metric))
        self._metric, self._held = metric, [tensor_variable(v) for v in held]
        with tf.init_scope():
            self._verdict = tf.Variable(_UNKNOWN, trainable=False, dtype=tf.int64)

    def check(self) -> None:
        """Raise UserError if the changes do not add up. Not within a graph."""
        if int(self._verdict) == _DEPENDS:
            raise UserError(
                "nfdt adds up a metric's state over workers, so it must be a sum over batches, not a maximum, a last "
                f"value or a moving average. Received: {self._metric.name!r}, {described(self._metric)}; use hfdt run, "
                "or -np 1"
            )

    def update(self, run: Callable[[], Any]) -> Any:
        """Update the metric by `run`."""
        if tf.executing_eagerly() and self._is_settled():
            return run()
        before = {id(v): tf.identity(v) for v in (*self._variables(), *self._held)}
        with assignments() as assigned:
            result = run()
        variables = [*self._variables(), *(v for v in self._held if v.ref() in assigned)]
        start = [before.get(id(v), tf.zeros_like(v)) for v in variables]  # it may have been made just now
        others = [ref.deref() for ref in assigned if not any(ref.deref() is v for v in variables)]
        changed = [tf.reduce_any(v != a) for v, a in zip(variables, start, strict=True)]
        verdict = self._verdict.read_value()
        due = [
            (verdict == _UNKNOWN) | (c & (verdict & bit == 0)) for c, bit in zip(changed, _bits(changed), strict=True)
        ]

        def examine() -> Tensor:
            depends, settled = _examine(run, self._result, variables, start, assigned, others)
            examined = [c | a.dtype.is_bool for c, a in zip(changed, start, strict=True)]
            bits = [tf.where(e, tf.constant(bit, tf.int64), 0) for e, bit in zip(examined, _bits(changed), strict=True)]
            adds = tf.where(settled, functools.reduce(tf.bitwise.bitwise_or, bits, verdict | _BEGUN), verdict)
            refused = tf.reduce_any([d & asked for d, asked in zip(depends, due, strict=True)])
            return tf.where(refused, tf.constant(_DEPENDS, tf.int64), adds)

        attributes = dict(vars(self._metric))
        asked = (verdict != _DEPENDS) & (tf.reduce_any(due) | (verdict == _UNKNOWN))
        self._verdict.assign(tf.cond(asked, examine, lambda: verdict))
        vars(self._metric).update(attributes)  # instead of tensors of another graph, and counts of repeated updates
        return result

    def _is_settled(self) -> bool:
        verdict, whole = int(self._verdict), functools.reduce(int.__or__, _bits(self._variables()), 0)
        return verdict == _DEPENDS or (verdict != _UNKNOWN and verdict & whole == whole)

    def _variables(self) -> list[tf.Variable]:
        found = map(tensor_variable, self._metric.variables)
        return [v for v in found if v.dtype.is_floating or v.dtype.is_integer or v.dtype.is_bool]


def watched_states(flavor: str, model: Model, held: Sequence[Any]) -> list[SummedState]:
    """Examine the metrics of a built model that run the script's code, and return their states."""
    return [_watched(flavor, metric, held) for metric in with_inner(model.metrics) if not of_library(metric)]


def _watched(flavor: str, metric: Any, held: Sequence[Any]) -> SummedState:
    state, original = SummedState(metric, held, flavor), metric.update_state

    def update_state(*args: Any, **kwargs: Any) -> Any:
        return state.update(lambda: call_converted(flavor, functools.partial(original, *args, **kwargs)))

    metric.__dict__["update_state"] = tf.autograph.experimental.do_not_convert(update_state)
    return state


def _bits(variables: Sequence[Any]) -> list[int]:
    return [1 << min(number, 61) for number in range(len(variables))]


def _examine(
    run: Callable[[], Any],
    result: Callable[[], Any],
    variables: list[tf.Variable],
    start: list[Tensor],
    assigned: Mapping[Any, int],
    others: list[tf.Variable],
) -> tuple[list[Tensor], Tensor]:
    """Return whether each of `variables` depends on the state before an update, and whether all are finite.

    `run` has just led them from `start` to their values. `others`: further variables that `run` assigns; they keep
    their values.
    """

    def after(state: Sequence[Tensor]) -> list[Tensor]:
        assign(variables, state)
        run()
        return [tf.identity(v) for v in variables]

    once, kept = ([tf.identity(v) for v in group] for group in (variables, others))
    twice, once_again, twice_again = after(once), after(start), after(once)
    depends = [*map(_depends, start, once, twice, once_again, twice_again)]
    flags = [i for i, v in enumerate(variables) if v.dtype.is_bool and v.ref() in assigned]
    if flags:
        alone = [tf.reduce_all(a == b) for a, b in zip(start, once, strict=True)]
        moved = [tf.where(alone[i], ~a, a) if i in flags else a for i, a in enumerate(start)]
        end = after(moved)
        for i in flags:  # true for all workers if for one, as it is if it is so from the start; false is no sum
            depends[i] |= tf.reduce_any(start[i]) | (alone[i] & tf.reduce_any(moved[i] != end[i]))
    same = _same_result(result, variables, start, once, twice)
    depends = [d & ~(same & small) for d, small in zip(depends, _compensating(start, once, twice), strict=True)]
    assign([*variables, *others], [*once, *kept])
    return depends, tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.cast(b, tf.float64))) for b in once])


def _compensating(start: list[Tensor], once: list[Tensor], twice: list[Tensor]) -> list[Tensor]:
    """Return for each variable whether it is as small as the rounding of another one."""
    largest = [_largest(states) for states in zip(start, once, twice, strict=True)]
    shares = [0.1 * _ROUNDING[a.dtype.size] if a.dtype.is_floating else 0.0 for a in start]
    return [
        tf.constant(share > 0) & (x <= share * tf.reduce_max(largest)) for x, share in zip(largest, shares, strict=True)
    ]


def _largest(states: Sequence[Tensor]) -> Tensor:
    return tf.reduce_max([tf.reduce_max(tf.abs(tf.cast(state, tf.float64))) for state in states])


def _same_result(
    result: Callable[[], Any],
    variables: list[tf.Variable],
    start: list[Tensor],
    once: list[Tensor],
    twice: list[Tensor],
) -> Tensor:
    """Return whether the metric's result is the same after two updates and after the sum of their changes."""

    def of(state: Sequence[Tensor]) -> list[Tensor]:
        assign(variables, state)
        return [tf.cast(number, tf.float64) for number in tf.nest.flatten(result())]

    if sum(v.dtype.is_floating for v in variables) < 2:  # no variable compensates for the rounding of another
        return tf.constant(False)
    try:
        found = of([b if a.dtype.is_bool else b + (b - a) for a, b in zip(start, once, strict=True)]), of(twice)
    except Exception:  # `result` may read numbers by Python, which a graph has not
        return tf.constant(False)
    return tf.reduce_all([tf.reduce_all(tf.abs(a - b) <= 1e-5 * tf.abs(b)) for a, b in zip(*found, strict=True)])


def _depends(start: Tensor, once: Tensor, twice: Tensor, once_again: Tensor, twice_again: Tensor) -> Tensor:
    """Return whether the change from `once` to `twice` is not that from `start` to `once`.

    Where repeated updates differ, they are random, and nothing is known.
    """
    if start.dtype.is_bool:
        return tf.reduce_any(once & ~twice)
    share = _ROUNDING[start.dtype.size] if start.dtype.is_floating else 0.0
    a, b, c, b_again, c_again = (tf.cast(state, tf.float64) for state in (start, once, twice, once_again, twice_again))
    bound = share * _largest((a, b, c))

    def close(x: Tensor, y: Tensor) -> Tensor:
        return tf.reduce_all((x == y) | (tf.abs(x - y) <= bound))

    differ = ~close(b - a, c - b) & close(b, b_again) & close(c, c_again)
    # A sum stays infinite or NaN once it is; a maximum begins at minus infinity.
    return tf.reduce_all(tf.math.is_finite(b)) & (~tf.reduce_all(tf.math.is_finite(a)) | differ)
