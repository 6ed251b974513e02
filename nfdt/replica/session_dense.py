"""Conversion of a session's gradients to dense arrays, which algorithms take, and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fdt.typing import Array


def dense(arrays: Sequence[Array], sparse: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Return dense arrays of the variables' shapes; an embedding's rows are summed at their indices.

    Args:
        arrays: Gradients, with rows and indices for a sparse one.
        sparse: Kind of each array, as `GradientNode.sparse`.
        shapes: Shapes of the variables.
    """
    made: list[Array] = []
    rest = iter(zip(arrays, sparse, strict=True))
    for array, kind in rest:
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
        if kind:
            indices, _ = next(rest)
            whole = np.zeros(shapes[len(made)], array.dtype)
            np.add.at(whole, indices, array)
            array = whole
        made.append(array)
    return made


def of_step(taken: Sequence[Any], shapes: Sequence[Sequence[int]], gradients: Sequence[Array]) -> list[Array]:
    """Return `dense` of all gradient nodes of a step, in order. `shapes`: of all their variables."""
    made: list[Array] = []
    arrays, places = iter(gradients), iter(shapes)
    for each in taken:
        made += dense([next(arrays) for _ in each.inputs], each.sparse, [next(places) for _ in each.variables])
    return made


def as_taken(gradients: Sequence[Array], sparse: Sequence[str], dtypes: Sequence[Any]) -> list[Array]:
    """Return the arrays that replace a node's gradients.

    Of an embedding only rows that are not 0 remain, because an optimizer does not touch rows that a batch lacks.

    Args:
        gradients: Dense gradients.
        sparse: Kind of each returned array.
        dtypes: NumPy dtype of each returned array.
    """
    made: list[Array] = []
    rest = iter(gradients)
    for place, kind in enumerate(sparse):
        if kind == "indices":
            continue
        gradient = np.asarray(next(rest))
        if not kind:
            made.append(gradient.astype(dtypes[place], copy=False))
            continue
        touched = np.flatnonzero(np.any(gradient.reshape(len(gradient), -1) != 0, axis=1))
        made += [gradient[touched].astype(dtypes[place]), touched.astype(dtypes[place + 1])]
    return made


def packed(arrays: Sequence[Array]) -> Array:
    """Return one vector, of float32 unless an array is wider."""
    kinds = [np.asarray(a).dtype for a in arrays]
    dtype = np.float64 if any(kind == np.float64 for kind in kinds) else np.float32
    return np.concatenate([np.ravel(a).astype(dtype, copy=False) for a in arrays]) if arrays else np.empty(0, dtype)


def unpacked(vector: Array, shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Return the parts of a vector as views in `shapes`."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]
