"""Before a step function's first divided call: is what it differentiates, and what it returns, a mean or a sum?

The function is tried on the first rows of the batch, and on each half of them; nothing is applied, and all variables
are put back. Where the halves' gradients add up to the whole's, the loss is a sum over samples; where their mean does,
a mean. BatchNorm and random numbers blur that, but the two are a factor of two apart: the nearer of them is it.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import tf_decorator

from hfdt.replica import batches
from hfdt.step import Reading

Vector = Any


TRIES = 20  # until all that a step function returns is known to be a mean or a sum


@dataclass(frozen=True)
class Found:
    """`gradients`: how each optimizer's step in turn is read. `outputs`: how each returned scalar is.

    None: it was 0 for all, which tells nothing yet; `values` has what the whole batch gives.
    """

    gradients: Sequence[Reading] = ()
    outputs: Sequence[Reading | None] = ()
    values: Sequence[float] = ()

    @property
    def settled(self) -> bool:
        return None not in self.outputs

    @property
    def default(self) -> Reading:
        return self.gradients[0] if len(set(self.gradients)) == 1 else Reading.MEAN


class Trials:
    """`recorded`: while a step is tried, the gradients that it would have applied; `rows`: from which rows."""

    def __init__(self, comm: Any = None) -> None:
        self._comm = comm
        self.recorded: list[Any] | None = None
        self.rows: tuple[int, int] = (0, 0)

    def found(self, function: Any, args: Any, kwargs: Any, rows: int) -> Found:
        """What is known of `function`, which is tried as long as that is not all. Rank 0 decides for all ranks."""
        tries, known = function.__dict__.get("_fdt_found", (0, Found()))
        if tries == TRIES or (tries and known.settled):
            return known  # type: ignore[no-any-return]
        try:
            found = self.probe(function, args, kwargs, rows)
        except Exception:  # on another number of rows it cannot run: no reason not to train
            found, tries = Found(), TRIES - 1
        named = [[r and r.name for r in group] for group in (found.gradients, found.outputs)]
        gradients, outputs = self._comm.same("how losses are read", named)
        last = Reading.MEAN if tries + 1 == TRIES else None
        outputs = tuple(Reading[name] if name else last for name in outputs)
        known = Found(tuple(Reading[name] for name in gradients), outputs, found.values)
        function.__dict__["_fdt_found"] = tries + 1, known
        return known

    def probe(self, function: Any, args: Any, kwargs: Any, rows: int) -> Found:
        """`function`: a tf.function that trains on batches of `rows` rows."""
        half = rows // 2
        tried = function.__dict__.setdefault("_fdt_tried", self._traced(function))
        results = []
        for low, high in ((0, rows), (0, 2 * half), (0, half), (half, 2 * half)):
            self.rows = low, high
            results.append(_run(tried, _rows(args, rows, low, high), _rows(kwargs, rows, low, high)))
        (_, values), *(whole, first, second) = results
        gradients, outputs = (zip(*group, strict=True) for group in zip(whole, first, second, strict=True))
        told = tuple(None if not any(group) else read(*group) for group in outputs)
        return Found(tuple(read(*group) for group in gradients), told, tuple(map(float, values)))

    def _traced(self, function: Any) -> Any:
        call, owner = _plain(function._python_function)
        if function._autograph:
            call = tf.__internal__.autograph.tf_convert(call, tf.__internal__.autograph.control_status_ctx())

        def trial(args: Any, kwargs: Any) -> Any:
            with self._recording() as recorded:
                output = call(*owner, *args, **kwargs)
            scalars = [leaf for leaf in tf.nest.flatten(output) if batches.is_scalar(leaf)]
            return [[_flat(gradients) for gradients in recorded], [tf.cast(s, tf.float64) for s in scalars]]

        return tf.function(trial, autograph=False)

    @contextlib.contextmanager
    def _recording(self) -> Iterator[list[Any]]:
        before, self.recorded = self.recorded, []
        try:
            yield self.recorded
        finally:
            self.recorded = before


def read(whole: Vector, first: Vector, second: Vector) -> Reading:
    """The nearer of sum and mean of two halves of equal size."""
    of_mean, of_sum = (float(np.sum(np.square(whole - k * (first + second)))) for k in (0.5, 1.0))
    return Reading.STEP_SUM if of_sum < of_mean else Reading.MEAN


def _run(tried: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What the trial gives, as NumPy; the variables it knows are as they were, and nothing is printed twice."""
    with contextlib.redirect_stdout(io.StringIO()):
        concrete = tried.get_concrete_function(args, kwargs)  # type: ignore[attr-defined]
        kept = [(v, v.read_value()) for v in concrete.graph.variables]
        try:
            return tf.nest.map_structure(lambda t: t.numpy(), tried(args, kwargs))
        finally:
            for variable, value in kept:
                variable.assign(value)


def _plain(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function, and the object it is a method of: converting TensorFlow's own wrapper of a method would change it."""
    inner = tf_decorator.unwrap(function)[1]
    if not isinstance(inner, MethodType):
        return inner, ()
    return inner.__func__, (getattr(inner.__self__, "target", inner.__self__),)


def _rows(values: Any, rows: int, low: int, high: int) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[low:high] if batches.has_rows(leaf, rows) else leaf, values)


def _flat(gradients: Sequence[Any]) -> Any:
    dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
    return tf.concat([tf.reshape(tf.cast(g, tf.float64), [-1]) for g in dense], axis=0)
