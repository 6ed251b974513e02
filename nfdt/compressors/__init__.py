"""Compressors of the tensors that a worker and a parameter server exchange: `--compress NAME(parameter=value)`.

A compressor is a file of this folder with a function `compressor(**parameters) -> TensorCompressor`. A new file adds a
compressor. Its functions are pure and take NumPy vectors. What a compressor loses is not its concern: the sender adds
it to what it sends next (nfdt/transport/compression.py).

Tensors of fewer than LEAST elements, and those of other types than float32, are sent as they are.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdt.algorithm_registry import AlgorithmRegistry
from fdt.errors import UsageError
from fdt.tensors import dtype_of
from fdt.typing import Array, Vector

LEAST = 1024
NONE = "none"
Spec = tuple[tuple[int, ...], str]  # shape, NumPy dtype name


def spec_bytes(spec: Spec) -> int:
    """Return the size of an array in bytes."""
    return math.prod(spec[0]) * dtype_of(spec[1]).itemsize


@dataclass(frozen=True)
class TensorCompressor:
    """The functions of a compressor. They work on one tensor, flat.

    Attributes:
        specs: `specs(elements)` returns the specs of the arrays that stand for a vector of float32.
        encode: `encode(vector)` returns these arrays. Where a value is not finite, a decoded value is not finite.
        decode: `decode(arrays, elements)` returns the vector of float32 that the receiver reads.
        pulls: Whether it also compresses pulls, where an element that is not sent stays stale on the worker.
    """

    specs: Callable[[int], list[Spec]]
    encode: Callable[[Vector], list[Array]]
    decode: Callable[[Sequence[Array], int], Vector]
    pulls: bool = True

    def wire(self, spec: Spec) -> list[Spec]:
        """Return the specs of the arrays that stand for a tensor of `spec`; [] where it is sent as it is."""
        elements = math.prod(spec[0])
        return self.specs(elements) if spec[1] == "float32" and elements >= LEAST else []


@dataclass(frozen=True)
class Compression:
    """The compressors of a job's pushes and of its pulls; None: uncompressed."""

    push: TensorCompressor | None = None
    pull: TensorCompressor | None = None


_book = AlgorithmRegistry(
    sys.modules[__name__], TensorCompressor, "nfdt/compressors/__init__.py", "compressor", "a compressor", "--compress"
)
names, parameters, describe = _book.names, _book.parameters, _book.describe


def make(text: str) -> Compression:
    """Return the compression of pushes and pulls.

    Args:
        text: "NAME": pushes, and pulls where it can. "NAME+NAME": pushes, then pulls. "none" is no compressor, and ""
            is no compression. A name may have parameters.

    Raises:
        UsageError: A name or a parameter is invalid, or the compressor is not for pulls.
    """
    if not text:
        return Compression()
    push, *pull = (None if part == NONE else _book.make(part) for part in _parts(text))
    if not pull:
        return Compression(push, push if push and push.pulls else None)
    if pull[0] is not None and not pull[0].pulls:
        raise UsageError(f"--compress: the second compressor must be one for pulls. Received: {text}")
    return Compression(push, pull[0])


def sizes(specs: Sequence[Spec]) -> dict[str, list[int]]:
    """Return [bytes of a push, bytes of a pull] by compressor. `specs`: those of the trainable variables."""
    made = {name: make(name) for name in map(_book.defaults, names())}
    return {
        name: [
            sum(spec_bytes(w) for s in specs for w in ((kind.wire(s) if kind else []) or [s]))
            for kind in (c.push, c.pull)
        ]
        for name, c in made.items()
    }


def spelled(text: str) -> str:
    """Return `text` as processes with another working directory read it. Raises UsageError as `make` does."""
    make(text)
    return "+".join(part if part == NONE else _book.spelled(part, part, {}, {}) or "" for part in _parts(text))


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in re.split(r"\+(?![^(]*\))", text)]
    if len(parts) > 2:
        raise UsageError(f"--compress must be NAME, or NAME+NAME for pushes and pulls. Received: {text}")
    return parts
