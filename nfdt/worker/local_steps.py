"""Local steps: a worker trains with the captured optimizer on several batches and pushes the change of the weights.

Algorithms with `local_steps` (nfdt/algorithm.py) use it. Each lane has its own optimizer variables, kept from push to
push: the slots and the step count by which Adam corrects its bias. Learning rates are the server's: a rate that a
callback writes arrives with the weights, and a schedule is read at the server's count of all workers' batches.

`ByShape` and `Assign` are compiled functions that every kind of step uses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.keras.variables import assignments, moving_averages, tensor_variable
from fdt.ops import all_finite, flat_call
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.model.shards import Ownership, pushed_others
from nfdt.model.variables import count_of, schedule_at
from nfdt.transport import Weights, WorkerGradient


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


class LocalStep:
    """One training step of a built model, compiled. It lives as long as the model."""

    def __init__(self, trainable: Trainable) -> None:
        self.trainable, self.others = trainable, pushed_others(trainable)
        optimizer = trainable.model.optimizer
        self.count = count_of(optimizer)
        rate = optimizer.learning_rate
        rates = {id(tensor_variable(rate))} if hasattr(rate, "assign") else set()
        self.own = [v for v in trainable.optimizer if id(tensor_variable(v)) not in rates]  # one copy per lane
        self.averages = moving_averages(trainable.model)
        self.changed: list[int] = []  # positions in `others`
        self.decays: list[float] = []  # of one step, by position in `changed`
        self.assign = Assign()
        self.train = ByShape(self._train, trainable)

    def _train(self, batch: Any, at: list[Tensor]) -> dict[str, Tensor]:
        """Run one training step. `at`: [the count at which a schedule is read]."""
        model, others = self.trainable.model, [tensor_variable(v) for v in self.others]
        with schedule_at(model.optimizer, at[0]), assignments() as assigned:
            logs: dict[str, Tensor] = model.train_step(batch)
        self.changed = [i for i, v in enumerate(others) if v.ref() in assigned]
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
        finite = bool(all_finite(taken))
        if not finite:  # as nfdt/worker/step.py does
            step.assign(step.others, others)
        self._own[lane] = _read(step.own) if finite else self._begin  # the slots would keep NaN or infinity
        if not finite:
            return WorkerGradient(taken, finite=False, logs=logs)
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
    beyond all bounds where n workers have pulled one value and n (1 - d) is large.
    """
    if after.dtype.is_bool:  # the last value is kept
        return after
    return after - before if decay == 1.0 else after - tf.cast(tf.constant(decay), after.dtype) * before


def _read(variables: Sequence[Any]) -> list[Tensor]:
    return [tensor_variable(v).read_value() for v in variables]
