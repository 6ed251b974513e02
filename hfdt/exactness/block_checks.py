"""Models that give other numbers where each block of a batch is computed alone (--algorithm coded)."""

from collections.abc import Set as AbstractSet
from typing import Any

from fdt.errors import CaptureError
from fdt.keras.variables import inner_optimizer


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
