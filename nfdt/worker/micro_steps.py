"""Micro-steps of a worker (AsyncAlgorithm.micro_steps): it divides a batch into S parts and walks over them.

For part s, of n_s of n rows, from the pulled weights x_0:

    x_s = x_(s-1) - eta / ((1 - mu) S) g_s        g_s at x_(s-1)
    pushed: sum_s (n_s / n) g_s                   the gradient of the batch where the step is small

eta / (1 - mu) is what one gradient moves the weights in the end, under SGD with momentum mu. So a push sees S points of
the path that its own step takes, instead of one.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fdt.data import source
from fdt.errors import UserError
from fdt.keras.variables import tensor_variable
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.model.shards import Ownership, pushed_others
from nfdt.transport import Weights, WorkerGradient
from nfdt.worker.local_steps import ByShape, assign, change_of

if TYPE_CHECKING:
    from nfdt.worker.step import GradientStep

RANDOM_ROWS = 128  # rows over which the noise of random layers is averaged


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
