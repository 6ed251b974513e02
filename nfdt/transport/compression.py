"""Compressed pushes and pulls of one lane and one shard, with error feedback: what is not sent is sent later.

A push sends C(gradient + residual). The residual becomes what the receiver lacks of that sum. A pull sends
C(weights - known), where `known` is what the worker has: the server keeps a copy for each worker. The first pull of a
session is not compressed, and neither is the first after the client has written weights.

A residual lives as long as its channel: one `fit` of one worker. A value that is not finite is sent and leaves the
residual as it is.

EF-SGD: Stich, Cordonnier and Jaggi, 2018, arXiv:1809.07599; Karimireddy et al., 2019, arXiv:1901.09847.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.typing import Array, Tensor, Vector
from nfdt.transport import WorkerGradient
from nfdt.transport.buffers import Buffer, Layout, array_over, nbytes_of


class PushEncoder:
    """A worker's side of pushes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.residuals: dict[int, Vector] = {}  # by position among the trainable variables

    def encode(self, index: int, tensor: Tensor) -> list[Array]:
        """Return the compressed arrays of the gradient of trainable variable `index`."""
        push = self._layout.compression.push
        assert push is not None
        wanted = array_over(tensor).reshape(-1)
        if index in self.residuals:
            wanted = wanted + self.residuals[index]
        arrays = push.encode(wanted)
        with np.errstate(invalid="ignore"):
            residual = wanted - push.decode(arrays, wanted.size)
            if np.isfinite(residual.sum()):
                self.residuals[index] = residual
        return arrays


class PushDecoder:
    """A server's side of pushes. Tensors are valid until the next push arrives."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._dense = Buffer(layout.trainable if layout.compression.push else ())

    def decode(self, index: int, incoming: Buffer) -> Tensor:
        """Return the gradient of trainable variable `index` in the push buffer `incoming`."""
        push = self._layout.compression.push
        if push is None or index not in self._layout.compressed:
            return self._layout.uncompressed(index, incoming)
        dense = self._dense.arrays[index]
        arrays = [incoming.arrays[p] for p in self._layout.pushed_at[index]]
        dense[...] = push.decode(arrays, dense.size).reshape(dense.shape)
        return self._dense.tensors[index]


class PullEncoder:
    """A server's side of pulls."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._loads = 0
        self.known: dict[int, Vector] = {}  # what the worker has, by position among the trainable variables

    def encode(self, positions: Sequence[int], tensors: Sequence[Tensor], loads: int) -> tuple[list[int], list[Any]]:
        """Return positions in the pull buffer and what is sent there. `loads`: Send.loads."""
        deltas = self._layout.deltas_at
        if loads != self._loads:
            self.known.clear()
            self._loads = loads
        places: list[int] = []
        sent: list[Any] = []
        for position, tensor in zip(positions, tensors, strict=True):
            if position < len(deltas) and deltas[position] and position in self.known:
                places += deltas[position]
                sent += self._delta(position, tensor)
            else:
                if position < len(deltas) and deltas[position]:
                    self.known[position] = np.array(array_over(tensor)).reshape(-1)
                places.append(position)
                sent.append(tensor)
        return places, sent

    def _delta(self, position: int, tensor: Tensor) -> list[Array]:
        pull, known = self._layout.compression.pull, self.known[position]
        assert pull is not None
        with np.errstate(invalid="ignore"):
            arrays = pull.encode(array_over(tensor).reshape(-1) - known)
            known += pull.decode(arrays, known.size)
        return arrays


def add_deltas(layout: Layout, positions: Sequence[int], incoming: Buffer) -> list[int]:
    """Add the compressed arrays at `positions` of the pull buffer to the weights in it.

    Returns:
        The positions of the weights and other variables that now hold the server's values.
    """
    pull, given = layout.compression.pull, set(positions)
    if pull is None or not layout.trainable:
        return list(positions)
    plain = [p for p in positions if p < layout.deltas_at[0].start]
    for index, at in enumerate(layout.deltas_at):
        if at and at[0] in given:
            weights = incoming.arrays[index]
            with np.errstate(invalid="ignore"):
                weights += pull.decode([incoming.arrays[p] for p in at], weights.size).reshape(weights.shape)
            plain.append(index)
    return sorted(plain)


class CompressedLane:
    """Both sides of a lane in one process, for the simulated channel.

    Attributes:
        saved_bytes: Bytes that the last pull did not need.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._encoder, self._decoder, self._pulls = PushEncoder(layout), PushDecoder(layout), PullEncoder(layout)
        self._pushed: tuple[Any, list[Tensor | None], int] = None, [], 0
        self.saved_bytes = 0

    def pushed(self, gradient: WorkerGradient) -> tuple[WorkerGradient, int]:
        """Return the gradient that the server receives, and its bytes. The same tensors are encoded once."""
        if self._pushed[0] is not gradient.gradient:
            positions, sent = self._layout.placed(gradient, self._encoder.encode)
            buffer = Buffer(self._layout.push)
            nbytes = buffer.write(positions, sent)
            decoded = [
                None if tensor is None else tf.identity(self._decoder.decode(index, buffer))
                for index, tensor in enumerate(gradient.gradient)
            ]
            self._pushed = gradient.gradient, decoded, nbytes
        return replace(gradient, gradient=self._pushed[1]), self._pushed[2]

    def open(self) -> None:
        """Start a session: its first pull is not compressed."""
        self._pulls = PullEncoder(self._layout)

    def pulled(self, positions: Sequence[int], tensors: Sequence[Tensor], loads: int) -> list[Tensor]:
        """Return the tensors that the worker has after a pull. `loads`: Send.loads."""
        _, sent = self._pulls.encode(positions, tensors, loads)
        self.saved_bytes = sum(map(nbytes_of, tensors)) - sum(map(nbytes_of, sent))
        known = self._pulls.known
        return [
            tf.constant(known[p].reshape(t.shape)) if p in known else t for p, t in zip(positions, tensors, strict=True)
        ]
