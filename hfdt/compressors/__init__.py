"""Compressors of the gradients that ranks add: `--compress NAME(parameter=value)`.

A compressor is a file of this folder with a function `compressor(**parameters) -> GradientCompressor`. A new file adds
a compressor. Its functions are pure, and they are traced into the training step: every rank calls `add` alike. State is
a flat list of tensors of a rank; hfdt/worker/compression.py stores it in variables.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fdt.algorithm_registry import AlgorithmRegistry
from fdt.tensors import dtype_of
from fdt.typing import Tensor

Shape = tuple[int, ...] | None  # None: rows of an embedding, whose number differs from step to step
Add = Callable[[list[Tensor]], list[Tensor]]  # sums tensors over ranks, in an exchange of its own


@dataclass(frozen=True)
class GradientCompressor:
    """The functions of a compressor. Gradients are weighted: their sum over ranks is that of the global batch.

    Attributes:
        init: `init(shapes) -> state`, the same on every rank.
        send: `send(state, gradients, shapes) -> tensors`: one for each gradient. The ranks' tensors are summed.
        receive: `receive(state, gradients, shapes, sums, add) -> (sums of gradients, state)`, where `sums` are those of
            `send`'s tensors. The sums of gradients are equal on all ranks and have the gradients' shapes and dtypes.
        feedback: Whether state has gradients that are sent later. Their scale must not change between steps.
        wire_bytes: `wire_bytes(shapes)` is the number of bytes that stand for gradients of float32 in all exchanges.
    """

    init: Callable[[Sequence[Shape]], list[Any]]
    send: Callable[[list[Tensor], list[Tensor], Sequence[Shape]], list[Tensor]]
    receive: Callable[
        [list[Tensor], list[Tensor], Sequence[Shape], list[Tensor], Add], tuple[list[Tensor], list[Tensor]]
    ]
    wire_bytes: Callable[[Sequence[tuple[int, ...]]], int]
    feedback: bool = False


_book = AlgorithmRegistry(
    sys.modules[__name__],
    GradientCompressor,
    "hfdt/compressors/__init__.py",
    "compressor",
    "a compressor",
    "--compress",
)
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def sizes(specs: Sequence[tuple[tuple[int, ...], str]]) -> dict[str, list[int]]:
    """Return [bytes that stand for the gradients] by compressor. `specs`: shapes and dtypes of the variables."""
    shapes = [shape for shape, dtype in specs if dtype == "float32"]
    others = sum(math.prod(shape) * dtype_of(d).itemsize for shape, d in specs if d != "float32")
    return {name: [make(name).wire_bytes(shapes) + others] for name in map(_book.defaults, names())}


def spelled(text: str) -> str:
    """Return `text` as ranks with another working directory read it. Raises UsageError as `make` does."""
    return _book.spelled(text, text, {}, {}) or text
