"""Memory buffers for tensors of a fixed layout, shared by two processes or private, and tensors over that memory.

`Sent` is a server's answer to a pull, whose tensors have their places in the layout of pulls.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fdt import ops
from fdt.errors import UserError
from fdt.keras.variables import tensor_variable
from fdt.service.handlers import StreamBroken
from fdt.tensors import aligned, dtype_of
from fdt.typing import Array, Tensor
from nfdt.compressors import Compression, Spec, TensorCompressor, spec_bytes
from nfdt.transport import WorkerGradient

CHUNK_BYTES = 2 << 20  # measured: 1 to 4 MiB are alike, below and above is slower (benchmarks/transport.py)
_PAGE = 4096


def spec_of(variable: Any) -> Spec:
    """Return the shape and dtype name of a variable."""
    return tuple(variable.shape), tf.as_dtype(variable.dtype).name


def nbytes_of(tensor: Any) -> int:
    """Return the size of a tensor, or of an array, in bytes."""
    if isinstance(tensor, np.ndarray):
        return tensor.nbytes
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def array_over(tensor: Any) -> Array:
    """Return an array over a CPU tensor's memory (read only); a GPU's tensor or an old TensorFlow's is copied."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):  # TensorFlow 2.16, bfloat16, GPU
        array: Array = tensor.numpy()
        return array


class Buffer:
    """Contiguous memory with one array per spec, each 64-byte aligned.

    Args:
        specs: Shape and dtype name of each array.
        path: File that another process maps too; None: private memory.
        create: Whether to create the file.
    """

    def __init__(self, specs: Sequence[Spec], path: Path | None = None, *, create: bool = False) -> None:
        self.specs = list(specs)
        self.nbytes = sum(aligned(spec_bytes(spec)) for spec in specs)
        self._memory = _map(path, max(self.nbytes, _PAGE), create)
        self.arrays = list(self._views())
        self.tensors = [ops.mapped_tensor(array) for array in self.arrays]

    def write(self, positions: Sequence[int], tensors: Sequence[Any]) -> int:
        """Copy `tensors` to their positions. Return the number of bytes."""
        count = 0
        for position, tensor in zip(positions, tensors, strict=True):
            source = array_over(tensor)
            np.copyto(self.arrays[position], source, casting="no")
            count += source.nbytes
        return count

    def parts(self, positions: Iterable[int]) -> list[memoryview]:
        """Return the writable bytes of the arrays at `positions`."""
        return [_bytes_of(self.arrays[position]) for position in positions]

    def _views(self) -> Iterator[Array]:
        offset = 0
        for shape, name in self.specs:
            count = int(np.prod(shape, dtype=np.int64))
            yield np.frombuffer(self._memory, dtype_of(name), count, offset).reshape(shape)
            offset += aligned(spec_bytes((shape, name)))


def chunks(tensors: Iterable[Any]) -> Iterator[bytes]:
    """Yield the bytes of `tensors`, one after another, in messages of CHUNK_BYTES."""
    pending: list[memoryview] = []
    room = CHUNK_BYTES
    for tensor in tensors:
        view = _bytes_of(array_over(tensor))
        while len(view) >= room:
            yield b"".join([*pending, view[:room]])
            pending, view, room = [], view[room:], CHUNK_BYTES
        if len(view):
            pending.append(view)
            room -= len(view)
    if pending:
        yield b"".join(pending)


def fill(parts: Iterable[memoryview], messages: Iterator[bytes]) -> int:
    """Copy the messages of `chunks` into `parts`, as many as they need.

    Returns:
        The number of bytes.

    Raises:
        StreamBroken: If the messages end too early: their sender is lost.
        ValueError: If a message is empty, or the messages hold more bytes than `parts`.
    """
    chunk, count = memoryview(b""), 0
    for part in parts:
        count += len(part)
        while len(part):
            if not len(chunk):
                message = next(messages, None)
                if message is None:
                    raise StreamBroken(f"a stream has ended {len(part)} bytes before the end of a tensor")
                if not message:
                    raise ValueError("a stream must hold the tensors of its header. Received: an empty message")
                chunk = memoryview(message)
            size = min(len(part), len(chunk))
            part[:size] = chunk[:size]
            part, chunk = part[size:], chunk[size:]
    if len(chunk):
        raise ValueError(f"a stream must hold the tensors of its header only. Received: {len(chunk)} bytes more")
    return count


@dataclass(frozen=True)
class Layout:
    """Specs of the tensors between a worker and one server: gradient and forward pass's changes, weights and scalars.

    A compressed gradient has its compressor's arrays in the push buffer. A compressed pull has its arrays after all
    others in the pull buffer, where the weights themselves have their place too.
    """

    trainable: list[Spec]
    others: list[Spec]
    scalars: list[Spec]
    compression: Compression = field(default_factory=Compression)

    @classmethod
    def of(cls, part: Any, compression: Compression | None = None) -> "Layout":
        """Return the layout of the OwnedVariables `part` of a server."""
        groups = (part.trainable, part.others, part.scalars)
        trainable, others, scalars = ([spec_of(tensor_variable(v)) for v in group] for group in groups)
        return cls(trainable, others, scalars, compression or Compression())

    @property
    def push(self) -> list[Spec]:
        """Specs of the push buffer."""
        wires = self._wires(self.compression.push)
        return [*chain.from_iterable(w or [s] for w, s in zip(wires, self.trainable, strict=True)), *self.others]

    @property
    def pull(self) -> list[Spec]:
        """Specs of the pull buffer."""
        return [*self._variables, *chain.from_iterable(self._wires(self.compression.pull))]

    @cached_property
    def pushed_at(self) -> list[range]:
        """Positions of each gradient's arrays in the push buffer; then one range of those of all forward changes."""
        counts = [len(wire) or 1 for wire in self._wires(self.compression.push)]
        return _ranges(0, [*counts, len(self.others)])

    @cached_property
    def deltas_at(self) -> list[range]:
        """Positions of each trainable variable's compressed arrays in the pull buffer; empty where it has none."""
        return _ranges(len(self._variables), [len(wire) for wire in self._wires(self.compression.pull)])

    def placed(
        self, gradient: WorkerGradient, encode: Callable[[int, Tensor], list[Any]] | None = None
    ) -> tuple[list[int], list[Any]]:
        """Return positions in the push buffer and what is sent there; nothing for an absent gradient.

        Args:
            gradient: This server's part of a gradient.
            encode: Returns the arrays of a compressed gradient, by its position among the trainable variables.
        """
        positions: list[int] = []
        sent: list[Any] = []
        for index, tensor in enumerate(gradient.gradient):
            if tensor is not None:
                positions += self.pushed_at[index]
                sent += encode(index, tensor) if encode and index in self.compressed else [tensor]
        changes = self.pushed_at[-1]
        return [*positions, *(changes[i] for i in gradient.changed)], [*sent, *gradient.changes]

    def uncompressed(self, index: int, incoming: Buffer) -> Tensor:
        """Return the gradient of trainable variable `index`, which is not compressed, in the push buffer `incoming`."""
        return incoming.tensors[self.pushed_at[index][0]]

    @cached_property
    def compressed(self) -> frozenset[int]:
        """The trainable variables whose gradients are compressed."""
        return frozenset(i for i, wire in enumerate(self._wires(self.compression.push)) if wire)

    @property
    def _variables(self) -> list[Spec]:
        return [*self.trainable, *self.others, *self.scalars]

    def _wires(self, compressor: TensorCompressor | None) -> list[list[Spec]]:
        return [compressor.wire(spec) if compressor else [] for spec in self.trainable]


@dataclass(frozen=True)
class Sent:
    """The answer to a pull: trainable, other and scalar optimizer variables of this server, as snapshots."""

    trainable: Sequence[Tensor]
    others: Sequence[Tensor]
    scalars: Sequence[Tensor]
    changed: tuple[int, ...]  # positions in `others` that have changed since training began

    def placed(self, *, everything: bool) -> tuple[list[int], list[Tensor]]:
        """Return positions in the pull layout and their tensors. `everything`: also unchanged others."""
        count, behind = len(self.trainable), len(self.trainable) + len(self.others)
        others = range(len(self.others)) if everything else self.changed
        positions = [*range(count), *(count + i for i in others), *range(behind, behind + len(self.scalars))]
        return positions, [*self.trainable, *(self.others[i] for i in others), *self.scalars]


class SessionPulls:
    """The pulls of one session: the first, and the first after a load of the client's weights, have all variables."""

    def __init__(self) -> None:
        self._loads = 0

    def placed(self, sent: Sent, loads: int) -> tuple[list[int], list[Tensor]]:
        """Return the positions and tensors of the next pull. `loads`: how often the client has loaded weights."""
        everything, self._loads = self._loads != loads, loads
        return sent.placed(everything=everything)


def _ranges(start: int, counts: Sequence[int]) -> list[range]:
    """Return consecutive ranges of these lengths."""
    ends = list(accumulate(counts, initial=start))
    return [range(low, high) for low, high in zip(ends, ends[1:], strict=False)]


def _map(path: Path | None, nbytes: int, create: bool) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, nbytes)
    with open(path, "xb+" if create else "rb+") as file:
        if create:
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:
                path.unlink()
                raise UserError(f"{path.parent} has no room for {nbytes:,} bytes more: {error}") from None
        return mmap.mmap(file.fileno(), nbytes)


def _bytes_of(array: Array) -> memoryview:
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
