"""Steps that a worker takes from the weights that it pulled, before one push: local steps and micro-steps.

Local steps (AsyncAlgorithm.local_steps): a worker trains with the captured optimizer on several batches and pushes the
change of the weights. Each lane has its own optimizer variables, kept from push to push: the slots and the step count
by which Adam corrects its bias. Learning rates are the server's: a rate that a callback writes arrives with the
weights, and a schedule is read at the server's count of all workers' batches.

Micro-steps (AsyncAlgorithm.micro_steps): a worker divides a batch into S parts and walks over them. For part s, of n_s
of n rows, from the pulled weights x_0:

    x_s = x_(s-1) - eta / ((1 - mu) S) g_s        g_s at x_(s-1)
    pushed: sum_s (n_s / n) g_s                   the gradient of the batch where the step is small

eta / (1 - mu) is what one gradient moves the weights in the end, under SGD with momentum mu. So a push sees S points of
the path that its own step takes, instead of one.

`ByShape` and `Assign` are compiled functions that every kind of step uses.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fdt.data import source
from fdt.errors import UserError
from fdt.keras.variables import assignments, moving_averages, tensor_variable
from fdt.ops import all_finite, finite_part, flat_call
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.model.settings import refuse_counting_rate
from nfdt.model.shards import Ownership, pushed_others
from nfdt.model.variables import count_of, schedule_at
from nfdt.transport import Weights, WorkerGradient

if TYPE_CHECKING:
    from nfdt.worker.step import GradientStep

RANDOM_ROWS = 128  # rows over which the noise of random layers is averaged


class ByShape:
    """`function(batch, tensors)`, compiled as the model's own step would be; eager if the model runs eagerly."""

    def __init__(self, function: Callable[[Any, list[Tensor]], Any], trainable: Trainable) -> None:
        model = trainable.model
        self._eager, self._function = bool(model.run_eagerly), function
        self._concrete: dict[tuple[Any, ...], Any] = {}  # by shapes and types of a batch
        if not self._eager:
            if trainable.flavor.name == "keras":  # Keras 3 traces its own step without autograph
                function = tf.autograph.experimental.do_not_convert(function)
            jit = bool(model.jit_compile) or None
            self._function = tf.function(function, jit_compile=jit, reduce_retracing=True)

    def trace(self, batch: Any, tensors: list[Any]) -> None:
        """Compile for these tf.TypeSpecs."""
        if not self._eager:
            self._function.get_concrete_function(batch, tensors)  # type: ignore[attr-defined]

    def __call__(self, batch: Any, tensors: list[Tensor]) -> Any:
        if self._eager:
            return self._function(batch, tensors)
        flat = [t for t in tf.nest.flatten(batch, expand_composites=True) if t is not None]
        key = _outline(batch), *((t.dtype, *t.shape) for t in flat)
        if key not in self._concrete:
            concrete = self._function.get_concrete_function(batch, tensors)  # type: ignore[attr-defined]
            self._concrete[key] = flat_call(concrete)
        return self._concrete[key]([*flat, *tensors])


def _outline(batch: Any) -> Any:
    """Return the structure of a batch: batches of different structure may have the same flat list."""
    if isinstance(batch, dict):
        return tuple((name, _outline(batch[name])) for name in sorted(batch))
    return tuple(map(_outline, batch)) if isinstance(batch, (tuple, list)) else type(batch)


class Assign:
    """Writes variables with one compiled function per choice of variables."""

    def __init__(self) -> None:
        self._functions: dict[tuple[int, ...], Any] = {}

    def __call__(self, variables: Sequence[Any], values: Sequence[Tensor]) -> None:
        key = tuple(map(id, variables))
        if key not in self._functions:
            targets = [tensor_variable(v) for v in variables]
            self._functions[key] = tf.function(lambda given: assign(targets, given), autograph=False)
        self._functions[key](list(values))


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> None:
    """Assign each value to its variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value, read_value=False)


def decays(averages: Mapping[int, float], variables: Sequence[Any], assigned: Mapping[Any, int]) -> list[float]:
    """Return what is left of each variable's old value after one step: d**k of an average assigned k times, else 1.

    Args:
        averages: The decay d of moving averages (fdt/keras/variables.py).
        variables: The tf.Variables that a step assigns.
        assigned: Number of assignments by the `ref()` of the variable.
    """
    return [averages.get(id(v), 1.0) ** assigned[v.ref()] for v in variables]


def summed(changed: Sequence[Any], averages: Mapping[int, float]) -> list[str]:
    """Return the names of the changed variables of floating numbers that are no moving averages."""
    own = [v for v in changed if tensor_variable(v).dtype.is_floating and id(tensor_variable(v)) not in averages]
    return [str(getattr(v, "path", v.name)) for v in own]


class LocalStep:
    """One training step of a built model, compiled. It lives as long as the model."""

    def __init__(self, trainable: Trainable) -> None:
        self.trainable, self.others = trainable, pushed_others(trainable)
        optimizer = trainable.model.optimizer
        refuse_counting_rate(optimizer)
        self.count = count_of(optimizer)
        rate = optimizer.learning_rate
        rates = {id(tensor_variable(rate))} if hasattr(rate, "assign") else set()
        self.own = [v for v in trainable.optimizer if id(tensor_variable(v)) not in rates]  # one copy per lane
        self.averages = moving_averages(trainable.model)
        self.changed: list[int] = []  # positions in `others`
        self.decays: list[float] = []  # of one step, by position in `changed`
        self.changes: list[str] = []
        self.assign = Assign()
        self.train = ByShape(self._train, trainable)

    def _train(self, batch: Any, at: list[Tensor]) -> dict[str, Tensor]:
        """Run one training step. `at`: [the count at which a schedule is read]."""
        model, others = self.trainable.model, [tensor_variable(v) for v in self.others]
        with schedule_at(model.optimizer, at[0]), assignments() as assigned:
            logs: dict[str, Tensor] = model.train_step(batch)
        self.changed = [i for i, v in enumerate(others) if v.ref() in assigned]
        self.changes = summed([self.others[i] for i in self.changed], self.averages)
        self.decays = decays(self.averages, [others[i] for i in self.changed], assigned)
        return logs


class LocalSteps:
    """The local steps of one job. Create it after the job's state is loaded: each lane starts from this state."""

    def __init__(self, step: LocalStep) -> None:
        self._step = step
        self._begin = _read(step.own)
        if not any(np.any(t) for t in self._begin if t.shape.rank):  # all slots are zero: no step was taken yet
            at = [id(tensor_variable(v)) for v in step.own].index(id(step.count))
            self._begin[at] = tf.zeros_like(self._begin[at])
        self._own: dict[int, list[Tensor]] = {}  # by lane

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch, as GradientStep.trace does."""
        self._step.train.trace(batch, [tf.TensorSpec((), self._step.count.dtype)])

    def run(
        self, lane: int, batches: Sequence[Any], owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> WorkerGradient:
        """Train on `batches` in order. `gradient` of the result is the weights before minus the weights after."""
        step, trainable = self._step, self._step.trainable
        count = self._load(owned, pulled)
        step.assign(step.own, self._own.get(lane, self._begin))
        weights, others = _read(trainable.trainable), _read(step.others)
        for number, batch in enumerate(batches):
            logs = step.train(batch, [count + tf.cast(number, count.dtype)])
        taken = [before - now for before, now in zip(weights, _read(trainable.trainable), strict=True)]
        if not all_finite(taken):  # the lane's own variables stay as they were before these batches
            step.assign(step.others, others)  # as nfdt/worker/step.py does
            return WorkerGradient(taken, finite=False, logs=logs)
        self._own[lane] = _read(step.own)
        after, left = _read(step.others), [decay ** len(batches) for decay in step.decays]
        changes = [change_of(after[i], others[i], d) for i, d in zip(step.changed, left, strict=True)]
        return WorkerGradient(taken, changes=changes, changed=step.changed, decays=left, logs=logs)

    def _load(self, owned: Sequence[Ownership], pulled: Sequence[Weights]) -> Tensor:
        """Write the pulled variables except the lane's own; return the server's step count."""
        own = {id(tensor_variable(v)) for v in self._step.own}
        sent: list[tuple[Any, Tensor]] = []
        for shard, weights in zip(owned, pulled, strict=True):
            variables = [*shard.part.trainable, *shard.part.others, *shard.part.scalars]
            sent += [
                (tensor_variable(variables[i]), t) for i, t in zip(weights.positions, weights.tensors, strict=True)
            ]
        written = [(v, t) for v, t in sent if id(v) not in own]
        self._step.assign([v for v, _ in written], [t for _, t in written])
        (count,) = [t for v, t in sent if v is self._step.count]
        return count


def change_of(after: Tensor, before: Tensor, decay: float) -> Tensor:
    """Return what is to be added to `decay` times the server's value.

    So a moving average makes the same step there as here: from v to d v + (1 - d) b. Sums of plain differences grow
    beyond all bounds where n workers have pulled one value and n (1 - d) is large. NaN and infinity count as 0, with
    which a running maximum begins; the server does the same.
    """
    if after.dtype.is_bool:  # the last value is kept
        return after
    before = finite_part(before)
    return after - before if decay == 1.0 else after - tf.cast(tf.constant(decay), after.dtype) * before


def _read(variables: Sequence[Any]) -> list[Tensor]:
    return [tensor_variable(v).read_value() for v in variables]


class MicroSteps:
    """The micro-steps of one model: a push is the mean gradient along a path over the parts of a batch."""

    def __init__(self, step: "GradientStep", trainable: Trainable, parts: int) -> None:
        self._step, self._trainable, self._parts = step, trainable, parts
        self._others = [tensor_variable(v) for v in pushed_others(trainable)]
        self._paths: dict[int, ByShape] = {}  # by number of parts
        self._checked = False

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch, as GradientStep.trace does."""
        self._step.trace(batch, owned)
        self._path(self._parts).trace(batch, self._step.specs)

    def run(
        self, lane: int, batches: Sequence[Any], owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> WorkerGradient:
        """Compute over the parts of one batch; a part has one row at least. Raises UserError if the loss is no mean."""
        (batch,) = batches
        weights, parts = self._step.load(owned, pulled), min(self._parts, int(source.rows(batch)))
        self._checked = self._checked or self._is_mean(batch, weights)
        return self._step.push_of(self._path(parts)(batch, weights), parts)

    def _path(self, parts: int) -> ByShape:
        if parts not in self._paths:
            self._paths[parts] = ByShape(functools.partial(self._along, parts), self._trainable)
        return self._paths[parts]

    def _along(self, parts: int, batch: Any, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any, Tensor]:
        """Return what GradientStep.compute does, of `parts` parts."""
        before, rows = [v.read_value() for v in self._others], tf.cast(source.rows(batch), tf.float32)
        means: list[Tensor] = []
        finite = tf.constant(True)
        for number in range(parts):
            part, _ = source.cut_batch(batch, number, parts)
            gradients, _, logs, fine = self._step.compute(part, weights)
            share, finite = tf.cast(source.rows(part), tf.float32) / rows, tf.logical_and(finite, fine)
            weighted = [g * tf.cast(share, g.dtype) for g in gradients]
            means = [m + g for m, g in zip(means, weighted, strict=True)] if means else weighted
            weights = self._step.descend(weights, gradients, 1.0 / self._parts)
        changes = []
        for i, decay in self._step.decays(parts).items():  # as GradientStep.compute does
            self._others[i].assign(tf.where(finite, self._others[i], before[i]))
            changes.append(change_of(self._others[i].read_value(), before[i], decay))
        return means, changes, logs, finite

    def _is_mean(self, batch: Any, weights: list[Tensor]) -> bool:
        """Compare the gradient of half a batch with that of the same rows twice. Leave no other trace.

        Both have the same statistics of BatchNorm. The noise of random layers is averaged over several passes.

        Returns:
            False if the batch shows nothing: one row, or a gradient of 0 or not finite.

        Raises:
            UserError: The loss is a sum over the batch.
        """
        count = int(source.rows(batch))
        if count < 2:
            return False
        before, metrics = [v.read_value() for v in self._others], self._trainable.metric_arrays()
        half, norms = source.cut_batch(batch, 0, 2)[0], []
        for number in range(1, max(RANDOM_ROWS // count, 4) + 1):
            batches = half, tf.nest.map_structure(_twice, half)
            norms.append([_norm(self._step.at(rows, weights).gradient) for rows in batches])
            if number == 4 and np.allclose(norms, norms[0], rtol=1e-5, equal_nan=True):
                break
        assign(self._others, before)
        self._trainable.write_metrics(metrics)
        once, doubled = map(float, np.sqrt(np.mean(np.square(norms), axis=0)))
        if doubled > once * 2**0.25:  # 2 of a sum; 1 of a mean, or 2**-0.5 where the noise of rows is all there is
            raise UserError(
                "micro_steps needs a loss that is a mean over the batch, not a sum; leave micro_steps out. Received: "
                f"a gradient of norm {once:.3g} of some rows, and {doubled:.3g} of the same rows twice"
            )
        return 0.0 < once < np.inf and np.isfinite(doubled)


def _twice(leaf: Any) -> Any:
    """Return the rows of a leaf of a batch twice, one copy after the other."""
    if leaf is None or leaf.shape.rank == 0:
        return leaf
    return tf.sparse.concat(0, [leaf, leaf]) if isinstance(leaf, tf.SparseTensor) else tf.concat([leaf, leaf], 0)


def _norm(gradient: Sequence[Tensor | None]) -> float:
    return float(tf.linalg.global_norm([tf.cast(g, tf.float32) for g in gradient if g is not None]))
