"""A checkpoint of a `fit`, a JSON header and arrays; and a `fit`'s signature, which recognizes it in a second run."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_shim.call import FitCall
from client_shim.resume import plain
from fdt.blobs import LocalBlobs
from fdt.job import ArrayData, Data, GraphData
from fdt.trainable import Trainable
from fdt.typing import Array

GROUPS = 3  # of arrays: the model's, the optimizer's, the metrics'


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a `fit`."""

    header: dict[str, Any]
    arrays: list[Array]

    @classmethod
    def check(cls, header: dict[str, Any], arrays: list[Array]) -> None:
        """Read every entry. Raises one of fdt.rundir.MALFORMED for a checkpoint that another program made."""
        saved = cls(header, arrays)
        for name in ("epoch", "seed"):
            int(header[name])
        for name in ("history", "epochs", "random", *({"params", "logs"} & header.keys())):  # older ones have none
            saved.plain(name)
        for _, encoded in header["callbacks"]:
            for value in encoded.values():
                plain.decode(value, arrays)
        if not {"done", "stopped"} <= header.keys() or len(saved.groups()) < GROUPS:
            raise KeyError("done, stopped, counts")
        if not isinstance(header["signature"], dict) or not isinstance(header["left_out"], list):
            raise TypeError("signature, left_out")

    @classmethod
    def check_step(cls, header: dict[str, Any], arrays: list[Array]) -> None:
        """Read every entry of a commit within an epoch, as `check` does."""
        for name in ("epoch", "step", "samples"):
            int(header[name])
        if len(cls(header, arrays).groups()) < GROUPS:
            raise KeyError("counts")

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

    @property
    def logs(self) -> dict[str, Any]:
        """The logs of the last epoch that was trained; none in an older checkpoint."""
        return self.plain("logs") if "logs" in self.header else {}

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


def signature(call: FitCall, data: Data, trainable: Trainable, blobs: Any) -> dict[str, Any]:
    """Return what must not change between a run and its resumption, as JSON."""
    arguments = call.arguments
    layout = {group: [[*shape, dtype] for shape, dtype, _ in rows] for group, rows in trainable.layout().items()}
    return {
        "model": layout,
        "epochs": int(arguments["epochs"]),
        "initial_epoch": int(arguments["initial_epoch"] or 0),
        "steps_per_epoch": int(arguments["steps_per_epoch"] or 0),
        "batch size": int(arguments["batch_size"] or 0),
        "data": _data_signature(data, blobs),
    }


def options_of_rows(engine: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that decide which rows a step has, each with its value or its default."""
    defaults = {"partition": "shuffle-split"}
    if engine == "hfdt":
        defaults |= {"batch": "global", "rule": "allreduce"}
    else:
        defaults |= {"overlap_epochs": ""}
    return {name: given.get(name) or default for name, default in defaults.items()}


def differs(before: Any, now: Any) -> bool:
    """Return whether two entries of signatures differ. A checksum of 0 matches any: remote data have none."""
    if isinstance(before, dict) and isinstance(now, dict) and 0 in (before.get("checksum"), now.get("checksum")):
        before, now = {**before, "checksum": 0}, {**now, "checksum": 0}
    return bool(before != now)


def _data_signature(data: Data, blobs: Any) -> dict[str, Any]:
    """Return the signature of the data, with a checksum of arrays that are in local shared memory."""
    if isinstance(data, ArrayData):
        return {"rows": data.rows, "checksum": _checksum(data.arrays, blobs)}
    if isinstance(data, GraphData):
        return {"batches": data.cardinality, "checksum": _checksum(data.constants, blobs)}
    return {"steps": data.steps}


def _checksum(ref: Any, blobs: Any) -> int:
    return zlib.crc32(blobs.get(ref)) if ref.id and isinstance(blobs, LocalBlobs) else 0


def short(value: Any) -> str:
    """Return `value` as text for an error's single line."""
    return text if len(text := str(value)) < 60 else "another value"
