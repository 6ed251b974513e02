"""Checks before training: all ranks read the same data, and the algorithm fits the model."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.data import first_batch_checksum
from fdt.errors import CaptureError, UserError
from fdt.keras.variables import inner_optimizer, tensor_variable, variables_of_slots
from hfdt.algorithm import RoundAlgorithm
from hfdt.collectives import Comm


def same_everywhere(comm: Comm, sources: Sequence[Any]) -> None:
    """Compare the ranks' first batches. Raises CaptureError where a pipeline gives ranks different batches."""
    if not sources:
        return
    mine = [int(first_batch_checksum(source), 16) >> 1 for source in sources]
    place = tf.one_hot(comm.rank, comm.size, dtype=tf.int64)
    sums = comm.sum([tf.constant(mine, tf.int64)[:, None] * place[None, :]], "hfdt.checksum")[0].numpy()
    different = np.any(sums != sums[:, :1], axis=0)
    if different.any():
        raise CaptureError(
            "every rank must read the same batches from the script's data, but "
            f"rank {int(np.argmax(different))}'s first batch differs from rank 0's. "
            "Give shuffles and random maps a seed"
        )


def may_idle(source: Any, size: int) -> bool:
    """Return whether a global batch may have fewer samples than there are ranks."""
    rows, batch = source.samples, source.batch_size
    if rows is None or batch is None:
        return True
    return bool(batch < size or 0 < rows % batch < size)


def refuse_inexact(asked: AbstractSet[str], sparse: AbstractSet[int], trainable: Any) -> None:
    """Raise CaptureError where the sum of the blocks' gradients does not give the step of the whole batch.

    Args:
        asked: What the model's step needs of other ranks (Probing.asked).
        sparse: Ids of the variables whose gradients are IndexedSlices.
        trainable: The model. Keras 3's optimizers except SGD square each slice alone, those of tf_keras their sum.
    """
    if needs := sorted(asked & {"batchnorm", "mask", "loss"}):
        raise CaptureError(
            "--algorithm coded computes each block of a batch alone. Received: a model that needs the whole batch "
            f"({', '.join(needs)}); --allow-inexact computes it per block"
        )
    name = type(inner_optimizer(trainable.model.optimizer)).__name__
    if sparse and trainable.flavor.name == "keras" and name != "SGD":
        raise CaptureError(
            f"--algorithm coded adds up the gradients of an embedding. Received: an embedding with {name}, which uses "
            "each of them alone where an index repeats; --allow-inexact uses their sum"
        )


def averaged_slots(rule: RoundAlgorithm, trainable: Any) -> list[Any]:
    """Return the tf.Variables of the optimizer that are averaged at a round's end: slots, without counts and rates.

    Args:
        rule: The algorithm.
        trainable: The model, a Trainable.

    Raises:
        UserError: If the algorithm does not keep a constraint of the model, or a moving average of its weights.
    """
    optimizer = inner_optimizer(trainable.model.optimizer)
    if rule.solver == "cg" and any(getattr(v, "constraint", None) is not None for v in trainable.trainable):
        raise UserError(
            "solver=cg keeps no constraints of weights; solver=optimizer does. Received: a weight with a constraint"
        )
    if not rule.slots and getattr(optimizer, "use_ema", False):
        raise UserError(
            "dane and admm do not average the optimizer's moving averages of weights. Received: use_ema=True; "
            "local_sgd averages them"
        )
    of_slots = variables_of_slots(trainable.model.optimizer, trainable.trainable)
    found = [(v, tensor_variable(v)) for v in trainable.optimizer if rule.slots]
    return [raw for v, raw in found if raw.shape.rank or id(v) in of_slots]
