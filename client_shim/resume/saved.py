"""What was saved of a `fit`: a header of JSON, and arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from client_shim.resume import plain
from fdt.tensors import Array
from fdt.trainable import Trainable


@dataclass(frozen=True)
class Saved:
    """A checkpoint. `epoch`: the first that it has not trained."""

    header: dict[str, Any]
    arrays: list[Array]

    @property
    def epoch(self) -> int:
        return int(self.header["epoch"])

    @property
    def done(self) -> bool:
        return bool(self.header["done"])

    @property
    def stopped(self) -> bool:
        """A callback wanted no more epochs."""
        return bool(self.header["stopped"])

    def load(self, trainable: Trainable) -> None:
        """Give the model, its optimizers and metrics what they held."""
        model, optimizer, metrics = self.groups()
        trainable.write_model(model)
        trainable.write_optimizer(optimizer)
        trainable.write_metrics(metrics)

    def groups(self) -> list[list[Array]]:
        """Model, optimizer, metrics."""
        ends = np.cumsum(self.header["counts"]).tolist()
        return [self.arrays[low:high] for low, high in zip([0, *ends], ends, strict=False)]

    def plain(self, name: str) -> Any:
        return plain.decode(self.header[name], self.arrays)
