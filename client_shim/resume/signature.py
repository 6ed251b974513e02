"""By what a `fit` is known again when its script runs a second time."""

import zlib
from typing import Any

from client_shim.call import FitCall
from fdt.blobs import LocalBlobs
from fdt.job import ArrayData, Data, GraphData
from fdt.trainable import Trainable


def signature(call: FitCall, data: Data, trainable: Trainable, blobs: Any) -> dict[str, Any]:
    """What must not change between a run and its resumption; JSON."""
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


def differs(before: Any, now: Any) -> bool:
    """Are two entries of a signature of two different fits? A checksum of 0 was not taken: data of a far server."""
    if isinstance(before, dict) and isinstance(now, dict) and 0 in (before.get("checksum"), now.get("checksum")):
        before, now = {**before, "checksum": 0}, {**now, "checksum": 0}
    return bool(before != now)


def _data_signature(data: Data, blobs: Any) -> dict[str, Any]:
    """Arrays are told apart by a checksum where they are at hand."""
    if isinstance(data, ArrayData):
        return {"rows": data.rows, "checksum": _checksum(data.arrays, blobs)}
    if isinstance(data, GraphData):
        return {"batches": data.cardinality, "checksum": _checksum(data.constants, blobs)}
    return {"steps": data.steps}


def _checksum(ref: Any, blobs: Any) -> int:
    return zlib.crc32(blobs.get(ref)) if ref.id and isinstance(blobs, LocalBlobs) else 0


def short(value: Any) -> str:
    """For an error's one line."""
    return text if len(text := str(value)) < 60 else "one that differs"
