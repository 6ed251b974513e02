"""PowerSGD: each gradient of a matrix is sent as the product of two thin ones, with error feedback.

M is a rank's gradient plus its residual, n x m, and Q is m x rank, the same on all ranks. One step of power iteration:

    P = orthogonal(sum of M Q),  Q' = sum of M^T P,  the sum of gradients is P Q'^T,  residual = M - P (M^T P)^T

Q' is the next step's Q. Two all-reduces send (n + m) rank numbers instead of n m. Vectors, and matrices that would not
get smaller, are sent as they are. A kernel of a convolution is a matrix of (height, width, in) x out.

Vogels, Karimireddy and Jaggi, 2019, arXiv:1905.13727, Algorithms 1 and 2.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    made = _PowerSgd(rank)
    return GradientCompressor(made.init, made.send, made.receive, made.wire_bytes, feedback=True)


class _PowerSgd(NamedTuple):
    """The functions of the compressor. `rank`: the number of columns of P and Q."""

    rank: int

    def init(self, shapes: Sequence[Shape]) -> list[Any]:
        forms = [(i, self._form(shape)) for i, shape in enumerate(shapes)]
        found = [(i, *f) for i, f in forms if f]
        return [self._start(i, m) for i, _, m in found] + [np.zeros((n, m), np.float32) for _, n, m in found]

    def send(self, state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        found = self._matrices(state, gradients, shapes)
        return [found[i][0] @ found[i][1] if i in found else g for i, g in enumerate(gradients)]

    def receive(
        self, state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape], sums: list[Tensor], add: Add
    ) -> tuple[list[Tensor], list[Tensor]]:
        found = self._matrices(state, gradients, shapes)
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
        return out, [_without_zeros(total[i], self._start(i, total[i].shape[0])) for i in found] + residuals

    def wire_bytes(self, shapes: Sequence[tuple[int, ...]]) -> int:
        forms = [(shape, self._form(shape)) for shape in shapes]
        return 4 * sum(sum(f) * self.rank if f else math.prod(shape) for shape, f in forms)

    def _form(self, shape: Shape) -> tuple[int, int] | None:
        """Return n and m of a matrix that gets smaller, or None."""
        if shape is None or len(shape) < 2 or not math.prod(shape):
            return None
        n, m = math.prod(shape[:-1]), shape[-1]
        return (n, m) if (n + m) * self.rank < n * m else None

    def _start(self, index: int, m: int) -> Any:
        """Return the first Q of the matrix at `index`, m x rank in float32."""
        return np.random.default_rng(index).normal(size=(m, self.rank)).astype(np.float32)

    def _matrices(self, state: list[Tensor], gradients: list[Tensor], shapes: Sequence[Shape]) -> dict[int, Any]:
        """Return {position: (M, Q)}."""
        chosen = [i for i, shape in enumerate(shapes) if self._form(shape)]
        starts, residuals = state[: len(chosen)], state[len(chosen) :]
        with_residual = [
            tf.cast(tf.reshape(gradients[i], r.shape), tf.float32) + r for i, r in zip(chosen, residuals, strict=True)
        ]
        return dict(zip(chosen, zip(with_residual, starts, strict=True), strict=True))


def _without_zeros(q: Tensor, start: Any) -> Tensor:
    """Replace columns of zeros, from which power iteration would find nothing, by those of `start`."""
    return tf.where(tf.reduce_any(q != 0, axis=0, keepdims=True), q, start)
