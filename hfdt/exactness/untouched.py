"""Contexts for a trial's steps: one sets variables and restores them afterwards, one excludes random numbers."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.keras import unique
from fdt.keras.variables import assign, tensor_variable
from fdt.ops import all_nodes, is_numeric
from fdt.patches import Patch, patched
from fdt.typing import Tensor

_MOVED = 2**20  # elements of the largest variable that is perturbed
_LATER = 1000, 1_000_000  # steps by which trials of later steps are later
_NEAR, _DISTANT = 0.1, 3.0  # perturbations, in mean magnitudes
_LARGER = 10.0


def others(trainable: Any) -> list[Any]:
    """Return the variables that the forward pass may assign, without the states of random generators."""
    seeds = {id(v) for v in trainable.seeds}
    return [v for v in trainable.non_trainable if id(v) not in seeds and is_numeric(tensor_variable(v).dtype)]


def counters(trainable: Any) -> list[Any]:
    """Return the variables of one number that may count steps: those of the optimizer, and the script's own."""
    own = [v for v in map(tensor_variable, others(trainable)) if not v.dtype.is_bool]
    updates = [v for v in map(tensor_variable, trainable.optimizer) if v.dtype.is_integer]
    return [v for v in (*own, *updates) if v.shape.rank == 0]


def later_steps(graph: Any) -> tuple[int, ...]:
    """Return the numbers by which counters are moved; a loop of the step's graph may run a million times then."""
    loops = any(node.op in ("While", "StatelessWhile") for node in all_nodes(graph.as_graph_def()))
    return _LATER[:1] if loops else _LATER


class Untouched:
    """A context in which variables and metrics may change, and which restores them at its end.

    Args:
        trainable: The model with its variables.
        moved: Perturb trainable variables, so that a term whose weight starts at zero has an effect.
        held: Further variables to be restored.
        later: Counters that start at a later step, as a term may have no effect at first.
        by: The number of steps by which they do.
        distant: Perturb by more, so that a term behind a limit has an effect.
    """

    def __init__(
        self,
        trainable: Any,
        *,
        moved: bool,
        held: Sequence[Any] = (),
        later: Sequence[Any] = (),
        by: int = 0,
        distant: bool = False,
    ) -> None:
        groups = (trainable.trainable, trainable.non_trainable, trainable.metrics, held, later)
        self._variables = unique([tensor_variable(v) for group in groups for v in group])
        self._before = [tf.identity(v) for v in self._variables]
        self._start = list(self._before)
        for i in range(len(trainable.trainable) if moved else 0):
            self._start[i] = _moved(self._before[i], _DISTANT if distant else _NEAR)
        counts = {id(v) for v in later}
        for i, variable in enumerate(self._variables):
            if id(variable) in counts:
                self._start[i] = self._before[i] + tf.cast(min(by, variable.dtype.max // 2), variable.dtype)
        self._seeds = {id(tensor_variable(v)) for v in trainable.seeds}

    def restart(self) -> None:
        """Restore the state of the start, except random generators: another run draws other numbers."""
        for variable, value in zip(self._variables, self._start, strict=True):
            if id(variable) not in self._seeds:
                variable.assign(value)

    def changed(self, variables: Sequence[Any], tolerance: float = 0.0) -> Any:
        """Return the first of `variables` that no longer has the value of the start; None: there is none.

        `tolerance`: the relative difference that does not count.
        """
        wanted = {id(tensor_variable(v)) for v in variables}
        for variable, value in zip(self._variables, self._start, strict=True):
            if id(variable) in wanted and bool(tf.reduce_any(_differ(tf.identity(variable), value, tolerance))):
                return variable
        return None

    def __enter__(self) -> "Untouched":
        return self

    def __exit__(self, *raised: Any) -> None:
        assign(self._variables, self._before)


def _differ(first: Tensor, second: Tensor, tolerance: float) -> Tensor:
    """Return which elements differ. NaN is equal to NaN."""
    numbers = tf.logical_or(tf.equal(first, first), tf.equal(second, second))
    differ = tf.logical_and(tf.not_equal(first, second), numbers)
    if not (tolerance and first.dtype.is_floating):
        return differ
    return tf.logical_and(differ, tf.logical_not(tf.abs(first - second) <= tolerance * tf.abs(second)))


def larger(batch: Any, *, signs: bool = False) -> Any:
    """Return a batch with its floating-point numbers magnified and perturbed, so that flags that are 0 are none.

    `signs`: magnify them only, so that their signs stay.
    """

    def magnified(value: Any) -> Any:
        if not value.dtype.is_floating:
            return value
        found = value * tf.cast(_LARGER, value.dtype)
        return found if signs else _moved(found, 1.0)

    return tf.nest.map_structure(
        lambda part: None if part is None else tf.nest.map_structure(magnified, part, expand_composites=True), batch
    )


def _moved(value: Tensor, reach: float) -> Tensor:
    """Perturb by `reach` mean magnitudes, up or down, alike on every rank. Large variables do not start at 0."""
    size = value.shape.num_elements()
    if not value.dtype.is_floating or not 0 < size <= _MOVED:
        return value
    wave = tf.reshape(tf.cos(tf.range(size, dtype=tf.float32)), value.shape)
    scale = tf.maximum(tf.reduce_mean(tf.abs(tf.cast(value, tf.float32))), 0.01)
    return value + tf.cast(reach * scale * wave, value.dtype)


@contextlib.contextmanager
def without_randomness(flavor: str) -> Iterator[None]:
    """Replace random functions: dropout is the identity, normal draws are their mean, uniform draws the middle."""
    patches = [
        Patch(tf.nn, "dropout", lambda original, x, *args, **kwargs: tf.convert_to_tensor(x)),
        Patch(tf.nn.experimental, "stateless_dropout", lambda original, x, *args, **kwargs: tf.convert_to_tensor(x)),
        Patch(tf.random, "normal", _normal),
        Patch(tf.random, "uniform", _uniform),
    ]
    if flavor == "keras":
        from fdt.compat.keras3 import random

        patches += [
            Patch(random, "dropout", lambda original, inputs, *args, **kwargs: inputs),
            Patch(random, "normal", _normal),
            Patch(random, "truncated_normal", _normal),
            Patch(random, "uniform", _uniform),
        ]
    with patched(patches):
        yield


def _normal(original: Any, shape: Any, mean: Any = 0.0, *args: Any, **kwargs: Any) -> Any:
    drawn = original(shape, mean, *args, **kwargs)
    return tf.zeros_like(drawn) + tf.cast(mean, drawn.dtype)


def _uniform(original: Any, shape: Any, minval: Any = 0, maxval: Any = None, *args: Any, **kwargs: Any) -> Any:
    drawn = original(shape, minval, maxval if maxval is not None else 1.0, *args, **kwargs)
    top = tf.cast(maxval if maxval is not None else 1, drawn.dtype)
    return tf.zeros_like(drawn) + (tf.cast(minval, drawn.dtype) + top) / 2 if drawn.dtype.is_floating else drawn
