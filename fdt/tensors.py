"""Packed arrays and nested values, as messages and files hold them.

Arrays are a small protobuf table, then the data, each array 64-byte aligned. The layout is the same in a shared-memory
file, in a stream of chunks and inside a message:

    8 bytes, little endian: length of the table | TensorTable | padding to 64 | data

Reading copies nothing: arrays are views of the bytes. TensorFlow requires 64-byte alignment to share them.

Dicts, lists and tuples are a JSON skeleton and a flat list of leaves. `None` is structure, not a leaf: Keras data is
`(x, y, None)` when there are no sample weights.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from fdt.rpc.tensor_pb2 import TensorSpec, TensorTable
from fdt.typing import Array

Buffer = bytes | bytearray | memoryview

ALIGNMENT = 64
NUMBERS = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(name for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and issubclass(kind, np.generic)),
}
_LENGTH = struct.Struct("<Q")


def packed_size(arrays: Iterable[Array]) -> int:
    """Return the number of bytes that `pack_into` needs."""
    table, nbytes = _layout([_plain(a) for a in arrays])
    return _data_start(table) + nbytes


def pack(arrays: Sequence[Array]) -> bytearray:
    """Pack `arrays` into new bytes."""
    plain = [_plain(a) for a in arrays]
    table, nbytes = _layout(plain)
    out = bytearray(_data_start(table) + nbytes)
    _write(table, plain, memoryview(out))
    return out


def pack_into(arrays: Sequence[Array], out: memoryview) -> None:
    """Pack `arrays` into `out`, which has at least `packed_size(arrays)` bytes. Each array is copied once."""
    plain = [_plain(a) for a in arrays]
    table, _ = _layout(plain)
    _write(table, plain, out)


def unpack(data: Buffer) -> list[Array]:
    """Return views of the arrays packed in `data`.

    Raises ValueError when the bytes do not match their table. No memory is allocated by a size that the table declares.
    """
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise ValueError(f"packed arrays need at least {_LENGTH.size} bytes. Received: {len(view)}")
    (length,) = _LENGTH.unpack_from(view)
    if length > len(view) - _LENGTH.size:
        raise ValueError(
            f"packed arrays must be longer than their table. Received: a table of {length} in {len(view)} bytes"
        )
    try:
        table = TensorTable.FromString(bytes(view[_LENGTH.size : _LENGTH.size + length]))
    except DecodeError as error:
        raise ValueError(f"packed arrays must begin with their table. Received: {error}") from None
    body = view[aligned(_LENGTH.size + length) :]
    return [_view(spec, body) for spec in table.tensors]


def _view(spec: TensorSpec, body: memoryview) -> Array:
    end = spec.offset + spec.nbytes
    if end > len(body):
        raise ValueError(f"an array must end within the bytes. Received: end {end} of {len(body)} bytes")
    raw, shape = body[spec.offset : end], tuple(spec.shape)
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape must hold no negative number. Received: {shape}")
    if spec.dtype == "string":
        return _strings(raw, shape)
    return np.frombuffer(raw, dtype=_dtype(spec.dtype)).reshape(shape)


def _dtype(name: str) -> np.dtype:
    if name not in NUMBERS:
        raise ValueError(f"a tensor's dtype must be a NumPy number or string. Received: {name!r}")
    return dtype_of(name)


def dtype_of(name: str) -> np.dtype:
    """Return the dtype of this name, which is NumPy's or of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _plain(array: Array) -> tuple[str, tuple[int, ...], Array]:
    """Return (dtype name, shape, contiguous array); strings become lengths and bytes, uint8."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        items = [v if isinstance(v, bytes) else str(v).encode() for v in array.reshape(-1).tolist()]
        lengths = np.array([len(items), *map(len, items)], np.uint64).tobytes()
        return "string", array.shape, np.frombuffer(lengths + b"".join(items), np.uint8)
    if not array.dtype.isnative:  # the dtype's name does not tell the order of its bytes
        array = array.astype(array.dtype.newbyteorder("="))
    return array.dtype.name, array.shape, np.ascontiguousarray(array)


def _strings(raw: memoryview, shape: tuple[int, ...]) -> Array:
    count = _LENGTH.unpack_from(raw)[0] if len(raw) >= _LENGTH.size else 0
    position = 8 + 8 * count
    if position > len(raw):
        raise ValueError(f"a string array is cut short. Received: {count} strings in {len(raw)} bytes")
    lengths = np.frombuffer(raw[8:position], np.uint64).tolist()
    if position + sum(lengths) > len(raw):
        raise ValueError(f"a string array is cut short. Received: {sum(lengths)} characters in {len(raw)} bytes")
    out = np.empty(count, object)
    for index, length in enumerate(lengths):
        out[index] = bytes(raw[position : position + length])
        position += length
    return out.reshape(shape)


def _layout(plain: Sequence[tuple[str, tuple[int, ...], Array]]) -> tuple[bytes, int]:
    table, offset = TensorTable(), 0
    for name, shape, data in plain:
        table.tensors.add(dtype=name, shape=shape, offset=offset, nbytes=data.nbytes)
        offset = aligned(offset + data.nbytes)
    return table.SerializeToString(), offset


def _write(table: bytes, plain: Sequence[tuple[str, tuple[int, ...], Array]], out: memoryview) -> None:
    _LENGTH.pack_into(out, 0, len(table))
    out[_LENGTH.size : _LENGTH.size + len(table)] = table
    start = offset = _data_start(table)
    for _, _, data in plain:
        if data.nbytes:
            np.frombuffer(out, np.uint8, data.nbytes, offset)[:] = data.reshape(-1).view(np.uint8)
        offset = start + aligned(offset - start + data.nbytes)


def _data_start(table: bytes) -> int:
    return aligned(_LENGTH.size + len(table))


def aligned(position: int) -> int:
    """Return the next multiple of ALIGNMENT."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def flatten(value: Any) -> tuple[str, list[Any]]:
    """Return the JSON skeleton of `value` and its leaves, in order.

    Dict keys must be strings; their order is kept.
    """
    leaves: list[Any] = []
    return json.dumps(_skeleton(value, leaves)), leaves


def unflatten(skeleton: str, leaves: Sequence[Any]) -> Any:
    """Undo `flatten`. Raises ValueError when the number of leaves does not match."""
    remaining = list(reversed(leaves))
    try:
        value = _rebuild(json.loads(skeleton), remaining)
    except IndexError:
        raise ValueError(f"fewer leaves than the structure has. Received: {len(leaves)} for {skeleton}") from None
    except (AttributeError, TypeError, RecursionError):
        raise ValueError(f"a structure must have the format of `flatten`. Received: {skeleton[:200]}") from None
    if remaining:
        raise ValueError(f"more leaves than the structure has. Received: {len(leaves)} for {skeleton}")
    return value


def _skeleton(value: Any, leaves: list[Any]) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return {"dict": [[key, _skeleton(item, leaves)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {
            type(value).__name__ if type(value) in (list, tuple) else "tuple": [_skeleton(v, leaves) for v in value]
        }
    leaves.append(value)
    return 0


def _rebuild(skeleton: Any, remaining: list[Any]) -> Any:
    if skeleton is None:
        return None
    if skeleton == 0:
        return remaining.pop()
    ((kind, items),) = skeleton.items()
    if kind == "dict":
        return {key: _rebuild(item, remaining) for key, item in items}
    values = [_rebuild(item, remaining) for item in items]
    return tuple(values) if kind == "tuple" else values


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of `logs`. Dicts inside are flattened, as Keras does with a compiled metric's result."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found.update(numbers(value))
        elif np.ndim(value) == 0:
            found[name] = float(value)
    return found


def put_logs(message: Any, logs: Mapping[str, float]) -> None:
    """Set the logs of a message, and their names in order: a map of protobuf has none."""
    message.logs.update(logs)
    message.log_names.extend(logs)


def buckets(sizes: Iterable[int], least: int) -> list[list[int]]:
    """Return the positions of `sizes`, in their order, in buckets. A bucket is full when it has `least`; 0: one bucket.

    There is one bucket or more. Only a single one is empty.
    """
    made: list[list[int]] = [[]]
    held = 0
    for position, size in enumerate(sizes):
        if least and held >= least:
            made.append([])
            held = 0
        made[-1].append(position)
        held += size
    return made
