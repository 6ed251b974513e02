"""A checkpoint of a `fit`: a JSON header and arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from client_shim.resume import plain
from fdt.tensors import Array
from fdt.trainable import Trainable


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a `fit`."""

    header: dict[str, Any]
    arrays: list[Array]

    @property
    def epoch(self) -> int:
        """The first epoch that the checkpoint has not trained."""
        return int(self.header["epoch"])

    @property
    def done(self) -> bool:
        """Whether the `fit` was finished."""
        return bool(self.header["done"])

    @property
    def stopped(self) -> bool:
        """Whether a callback stopped the training."""
        return bool(self.header["stopped"])

    def load(self, trainable: Trainable) -> None:
        """Write the checkpoint into the model, its optimizers and metrics."""
        model, optimizer, metrics = self.groups()
        trainable.write_model(model)
        trainable.write_optimizer(optimizer)
        trainable.write_metrics(metrics)

    def groups(self) -> list[list[Array]]:
        """Return the arrays of the model, the optimizer and the metrics."""
        ends = np.cumsum(self.header["counts"]).tolist()
        return [self.arrays[low:high] for low, high in zip([0, *ends], ends, strict=False)]

    def plain(self, name: str) -> Any:
        """Return the plain value of the header's entry `name`."""
        return plain.decode(self.header[name], self.arrays)
