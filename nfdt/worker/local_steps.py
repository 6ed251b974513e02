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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fdt.data import source
from fdt.errors import UserError
from fdt.keras.variables import assignments, moving_averages, tensor_variable
from fdt.ops import all_finite, flat_call
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.model.settings import check_logs, refuse_counting_rate
from nfdt.model.shards import Changed, Ownership, change_of, pushed_others
from nfdt.model.variables import count_of, schedule_at
from nfdt.transport import Weights, WorkerGradient

if TYPE_CHECKING:
    from nfdt.worker.step import GradientStep, TracedGradient

RANDOM_ROWS = 128  # rows over which the noise of random layers is averaged


class ByShape:
    """`function(batch, tensors)`, compiled as the model's own step would be; eager if the model runs eagerly.

    The function returns (tensors, found): `found` is any object that it makes as it is traced, such as the positions of
    variables. Batches of another structure are traced anew, and have another one.

    Attributes:
        found: That of the function that was compiled or called last; None before.
    """

    def __init__(self, function: Callable[[Any, list[Tensor]], tuple[Any, Any]], trainable: Trainable) -> None:
        def traced(batch: Any, tensors: list[Tensor]) -> Any:
            result, self.found = function(batch, tensors)
            return result

        model = trainable.model
        self._eager, self._function, self.found = bool(model.run_eagerly), function, None
        self._found: dict[Any, Any] = {}  # by compiled function
        self._concrete: dict[tuple[Any, ...], Any] = {}  # by shapes and types of a batch
        self._described: tuple[Any, Any] = None, None  # the last tf.TypeSpecs, and their compiled function
        if not self._eager:
            if trainable.flavor.name == "keras":  # Keras 3 traces its own step without autograph
                traced = tf.autograph.experimental.do_not_convert(traced)
            self._function = tf.function(traced, jit_compile=bool(model.jit_compile) or None, reduce_retracing=True)

    def trace(self, batch: Any, tensors: list[Any]) -> None:
        """Compile for these tf.TypeSpecs. Batches that they describe are computed by this function from now on."""
        if not self._eager:
            self._described = batch, self._compile(batch, tensors)
            self._concrete.clear()

    def _compile(self, batch: Any, tensors: list[Any]) -> Any:
        concrete = self._function.get_concrete_function(batch, tensors)  # type: ignore[attr-defined]
        self.found = self._found.setdefault(concrete, self.found)
        return concrete

    def __call__(self, batch: Any, tensors: list[Tensor]) -> tuple[Any, Any]:
        """Return what the function returns."""
        if self._eager:
            result, self.found = self._function(batch, tensors)
            return result, self.found
        flat = [t for t in tf.nest.flatten(batch, expand_composites=True) if t is not None]
        key = _outline(batch), *((t.dtype, *t.shape) for t in flat)
        if key not in self._concrete:
            spec, concrete = self._described
            if not _describes(spec, batch):
                concrete = self._compile(batch, tensors)
            self._concrete[key] = flat_call(concrete), self._found[concrete]
        call, self.found = self._concrete[key]
        return call([*flat, *tensors]), self.found


def _outline(batch: Any) -> Any:
    """Return the structure of a batch: batches of different structure may have the same flat list."""
    if isinstance(batch, dict):
        return tuple((name, _outline(batch[name])) for name in sorted(batch))
    return tuple(map(_outline, batch)) if isinstance(batch, (tuple, list)) else type(batch)


def _describes(spec: Any, batch: Any) -> bool:
    """Return whether tf.TypeSpecs describe a batch: one with other rows, or of unknown rows, is another function."""
    if isinstance(spec, dict):
        return (
            isinstance(batch, dict) and spec.keys() == batch.keys() and all(_describes(spec[k], batch[k]) for k in spec)
        )
    if isinstance(spec, (tuple, list)):
        same = isinstance(batch, (tuple, list)) and len(spec) == len(batch)
        return same and all(map(_describes, spec, batch))
    return spec is batch if spec is None or batch is None else bool(spec.is_compatible_with(batch))


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
        self.assign = Assign()
        self.train = ByShape(self._train, trainable)

    def _train(self, batch: Any, at: list[Tensor]) -> tuple[dict[str, Tensor], Changed]:
        """Run one training step. `at`: [the count at which a schedule is read]."""
        model = self.trainable.model
        with schedule_at(model.optimizer, at[0]), assignments() as assigned:
            logs: dict[str, Tensor] = model.train_step(batch)
        check_logs(self.trainable, logs)
        return logs, Changed.by(assigned, self.others, self.averages)


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
        weights, others, left = _read(trainable.trainable), _read(step.others), dict[int, float]()
        for number, batch in enumerate(batches):
            logs, found = step.train(batch, [count + tf.cast(number, count.dtype)])
            left = {i: left.get(i, 1.0) * found.left.get(i, 1.0) for i in sorted({*left, *found.left})}
        taken = [before - now for before, now in zip(weights, _read(trainable.trainable), strict=True)]
        if not all_finite(taken):  # the lane's own variables stay as they were before these batches
            step.assign(step.others, others)  # as nfdt/worker/step.py does
            return WorkerGradient(taken, finite=False, logs=logs)
        self._own[lane] = _read(step.own)
        after = _read(step.others)
        changes = [change_of(after[i], others[i], decay) for i, decay in left.items()]
        return WorkerGradient(taken, changes=changes, changed=list(left), decays=list(left.values()), logs=logs)

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


def _read(variables: Sequence[Any]) -> list[Tensor]:
    return [tensor_variable(v).read_value() for v in variables]


class MicroSteps:
    """The micro-steps of one model: a push is the mean gradient along a path over the parts of a batch."""

    def __init__(self, step: "GradientStep", trainable: Trainable, parts: int) -> None:
        self._step, self._trainable, self._parts = step, trainable, parts
        self._others = [tensor_variable(v) for v in pushed_others(trainable)]
        self._paths: dict[int, ByShape] = {}  # by number of parts
        self._checked, self._spec = False, None

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch, as GradientStep.trace does."""
        self._checked, self._spec = self._checked and batch == self._spec, batch
        self._step.trace(batch, owned)
        self._path(self._parts).trace(batch, self._step.specs)

    def run(
        self, lane: int, batches: Sequence[Any], owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> WorkerGradient:
        """Compute over the parts of one batch; a part has one row at least. Raises UserError if the loss is no mean."""
        (batch,) = batches
        weights, parts = self._step.load(owned, pulled), min(self._parts, int(source.rows(batch)))
        self._checked = self._checked or self._is_mean(batch, weights)
        return self._step.push_of(*self._path(parts)(batch, weights), parts)

    def _path(self, parts: int) -> ByShape:
        if parts not in self._paths:
            self._paths[parts] = ByShape(functools.partial(self._along, parts), self._trainable)
        return self._paths[parts]

    def _along(self, parts: int, batch: Any, weights: list[Tensor]) -> tuple[Any, "TracedGradient"]:
        """Return what GradientStep.compute does, of `parts` parts."""
        before, rows = [v.read_value() for v in self._others], tf.cast(source.rows(batch), tf.float32)
        means: list[Tensor] = []
        finite = tf.constant(True)
        for number in range(parts):
            part, _ = source.cut_batch(batch, number, parts)
            (gradients, _, logs, fine), found = self._step.compute(part, weights)
            share, finite = tf.cast(source.rows(part), tf.float32) / rows, tf.logical_and(finite, fine)
            weighted = [g * tf.cast(share, g.dtype) for g in gradients]
            means = [m + g for m, g in zip(means, weighted, strict=True)] if means else weighted
            weights = self._step.descend(weights, gradients, found.present, 1.0 / self._parts)
        changes = []
        for i, decay in found.changed.left.items():  # as GradientStep.compute does
            self._others[i].assign(tf.where(finite, self._others[i], before[i]))
            changes.append(change_of(self._others[i].read_value(), before[i], decay**parts))
        return (means, changes, logs, finite), found

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
