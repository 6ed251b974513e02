"""A worker's gradient step: weights in, gradient and forward changes out. Keras's own `train_step` computes them.

The step replaces the outermost optimizer's apply by a function that records the gradients. So Keras handles custom
training steps, losses, sample weights, regularisers and metrics. The step divides by the loss scale that it used,
because the server's scale may have changed; the server multiplies by its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt.data.source import leading
from fdt.errors import CaptureError
from fdt.keras.variables import is_loss_scaled, tensor_variable
from fdt.ops import all_finite
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.shards import Ownership, own, summable_others
from nfdt.model.variables import loss_scale
from nfdt.transport.channel import Weights, WorkerGradient
from nfdt.worker.local_steps import Assign, ByShape, LocalStep, LocalSteps, assign, assignments


@dataclass(frozen=True)
class TracedGradient:
    """Result of tracing: which gradients exist, and which other variables the forward pass changes."""

    present: list[int]
    changed: list[int]


class GradientStep:
    """The compiled gradient of one built model. It lives as long as the model."""

    def __init__(self, trainable: Trainable) -> None:
        self._trainable, self._model = trainable, trainable.model
        self._others = summable_others(trainable)
        self._found: TracedGradient | None = None
        self._assign = Assign()
        self._every_pull: list[Any] = []
        self._function = ByShape(self._compute, trainable)
        self._local: LocalStep | None = None

    def of(self, rule: AsyncAlgorithm) -> Any:
        """Return the object that computes pushes for `rule`: this one, or LocalSteps. Load the job's state first."""
        if rule.local_steps is None:
            return self
        self._local = self._local or LocalStep(self._trainable)
        return LocalSteps(self._local)

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch: a worker that traces during training pushes stale gradients.

        Args:
            batch: Tree of tf.TypeSpec that the source's batches match.
            owned: Variables of each shard.
        """
        if self._found is None:
            self._every_pull = [v for shard in owned for v in (*shard.part.trainable, *shard.part.scalars)]
            weights = [tf.TensorSpec(v.shape, tensor_variable(v).dtype) for v in self._every_pull]
            self._function.trace(batch, weights)

    def run(
        self, lane: int, batches: Sequence[Any], owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> WorkerGradient:
        """Compute the gradient of one batch.

        Args:
            lane: Number of the lane; unused.
            batches: A single batch.
            owned: Variables of each shard.
            pulled: Weights from each shard. The variables share the buffers' memory: nothing is copied.
        """
        (batch,) = batches
        weights, others = self._sort(owned, pulled)
        if others:
            self._assign([variable for variable, _ in others], [tensor for _, tensor in others])
        gradients, changes, logs, finite = self._function(batch, weights)
        assert self._found is not None
        whole: list[Tensor | None] = [None] * len(self._trainable.trainable)
        for position, gradient in zip(self._found.present, gradients, strict=True):
            whole[position] = gradient
        return WorkerGradient(whole, finite=bool(finite), changes=changes, changed=self._found.changed, logs=logs)

    def _sort(
        self, owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> tuple[list[Tensor], list[tuple[Any, Tensor]]]:
        """Return the tensors of every pull, and (variable, value) of those that only some pulls contain."""
        weights, others = [], []
        self._every_pull = []
        for shard, weights_of in zip(owned, pulled, strict=True):
            part = shard.part
            first, behind = len(part.trainable), len(part.trainable) + len(part.others)
            self._every_pull += [*part.trainable, *part.scalars]
            for position, tensor in zip(weights_of.positions, weights_of.tensors, strict=True):
                if first <= position < behind:
                    others.append((part.others[position - first], tensor))
                else:
                    weights.append(tensor)
        return weights, others

    def _compute(self, batch: Any, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any, Tensor]:
        assign([tensor_variable(v) for v in self._every_pull], weights)
        others = [tensor_variable(v) for v in self._others]
        before = [v.read_value() for v in others]
        applied: list[tuple[list[Any], list[Any]]] = []

        def note(apply: Any, gradients: list[Any], variables: list[Any]) -> None:
            applied.append((list(gradients), list(variables)))

        with self._trainable.flavor.replace_apply(self._model.optimizer, note), assignments() as assigned:
            logs = self._model.train_step(batch)
        if len(applied) != 1:
            raise CaptureError(
                f"a captured train_step must apply gradients once. Received: {len(applied)} times; --capture replica "
                "supports several optimizers"
            )
        present, gradients = self._in_order(*applied[0])
        changed = [i for i, v in enumerate(others) if id(v) in assigned]
        self._found = TracedGradient(present, changed)
        if is_loss_scaled(self._model.optimizer):  # the optimizer handles overflow itself
            finite = tf.constant(True)
        else:
            finite = all_finite(gradients)
            for i in changed:  # a NaN moving mean would stay until another worker's push replaces it
                others[i].assign(tf.where(finite, others[i], before[i]))
        return gradients, [others[i].read_value() - before[i] for i in changed], logs, finite

    def _in_order(self, gradients: list[Any], variables: list[Any]) -> tuple[list[int], list[Tensor]]:
        position = {id(tensor_variable(v)): i for i, v in enumerate(self._trainable.trainable)}
        pairs = zip(variables, gradients, strict=True)
        by_position = {position[id(tensor_variable(v))]: g for v, g in pairs if g is not None}
        present = sorted(by_position)
        scale = loss_scale(self._model.optimizer)
        dense = [tf.convert_to_tensor(by_position[i]) for i in present]
        return present, dense if scale is None else [g / tf.cast(scale, g.dtype) for g in dense]


def samples_of(batch: Any) -> int:
    """Return the number of samples of a batch."""
    return int(leading(batch).shape[0])


def ownerships(trainable: Trainable, shards: int) -> list[Ownership]:
    """Return the variables of each shard."""
    return [own(trainable, shard, shards) for shard in range(shards)]
