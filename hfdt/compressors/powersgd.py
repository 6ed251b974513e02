"""PowerSGD: each gradient of a matrix is sent as the product of two thin ones, with error feedback.

M is a rank's gradient plus its residual, n x m, and Q is m x rank, the same on all ranks. One step of power iteration:

    P = orthogonal(sum of M Q),  Q' = sum of M^T P,  the sum of gradients is P Q'^T,  residual = M - P (M^T P)^T

Q' is the next step's Q. Two all-reduces send (n + m) rank numbers instead of n m. Vectors, and matrices that would not
get smaller, are sent as they are. A kernel of a convolution is a matrix of (height, width, in) x out.

Vogels, Karimireddy and Jaggi, 2019, arXiv:1905.13727, Algorithms 1 and 2.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.typing import Tensor
from hfdt.compressors import Add, GradientCompressor, Shape


def compressor(rank: int = 2) -> GradientCompressor:
    """Make the compressor.

    Args:
        rank: The number of columns of P and Q, 1 or more.
    """
    if rank < 1:
        raise ValueError(f"powersgd: rank must be 1 or more. Received: {rank}")

    def form(shape: Shape) -> tuple[int, int] | None:
        """Return n and m of a matrix that gets smaller, or None."""
        if shape is None or len(shape) < 2 or not math.prod(shape):
            return None
        n, m = math.prod(shape[:-1]), shape[-1]
        return (n, m) if (n + m) * rank < n * m else None

    def start(index: int, m: int) -> Any:
        return np.random.default_rng(index).normal(size=(m, rank)).astype(np.float32)

    def init(shapes: Sequence[Shape]) -> list[Any]:
        forms = [(i, form(shape)) for i, shape in enumerate(shapes)]
        found = [(i, *f) for i, f in forms if f]
        return [start(i, m) for i, _, m in found] + [np.zeros((n, m), np.float32) for _, n, m in found]

    def matrices(state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape]) -> dict[int, Any]:
        """Return {position: (M, Q)}."""
        chosen = [i for i, shape in enumerate(shapes) if form(shape)]
        starts, residuals = state[: len(chosen)], state[len(chosen) :]
        with_residual = [
            tf.cast(tf.reshape(gradients[i], r.shape), tf.float32) + r for i, r in zip(chosen, residuals, strict=True)
        ]
        return dict(zip(chosen, zip(with_residual, starts, strict=True), strict=True))

    def send(state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        found = matrices(state, gradients, shapes)
        return [found[i][0] @ found[i][1] if i in found else g for i, g in enumerate(gradients)]

    def receive(
        state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape], sums: list[Tensor], add: Add
    ) -> tuple[list[Tensor], list[Tensor]]:
        found = matrices(state, gradients, shapes)
        if not found:
            return sums, state
        bases = {i: tf.linalg.qr(sums[i]).q for i in found}
        own = {i: tf.matmul(m, bases[i], transpose_a=True) for i, (m, _) in found.items()}
        total = dict(zip(found, add(list(own.values())), strict=True))
        out = list(sums)
        for i in found:
            whole = tf.matmul(bases[i], total[i], transpose_b=True)
            out[i] = tf.cast(tf.reshape(whole, gradients[i].shape), gradients[i].dtype)
        residuals = [m - tf.matmul(bases[i], own[i], transpose_b=True) for i, (m, _) in found.items()]
        return out, [_without_zeros(total[i], start(i, total[i].shape[0])) for i in found] + residuals

    def wire_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
        forms = [(shape, form(shape)) for shape in shapes]
        return 4 * sum(sum(f) * rank if f else math.prod(shape) for shape, f in forms)

    return GradientCompressor(init, send, receive, wire_bytes, feedback=True)


def _without_zeros(q: Tensor, start: Any) -> Tensor:
    """Replace columns of zeros, from which power iteration would find nothing, by those of `start`."""
    return tf.where(tf.reduce_any(q != 0, axis=0, keepdims=True), q, start)
