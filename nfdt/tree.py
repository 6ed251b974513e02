"""Trees of arrays, and the array functions that have no operator.

An algorithm is written once and runs on three kinds of array: NumPy's (in tests), TensorFlow's, and the traced values
of nfdt/server/traced_program.py, which the server compiles. Operators work on all three. A function of arrays without
an operator is defined here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # NumPy's, TensorFlow's or a TracedValue
Tree = Any  # lists, tuples, dicts and dataclasses of arrays; None and plain Python values are structure


def is_array(value: Any) -> bool:
    """Return whether `value` is an array of any of the three kinds."""
    return hasattr(value, "shape")


def tree_map(function: Callable[[Array], Any], tree: Tree) -> Any:
    """Apply `function` to every array of `tree`; keep every other value as it is."""
    if is_array(tree):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, item) for key, item in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, item) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, item) for item in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {f.name: tree_map(function, getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **changed)
    return tree


def leaves(tree: Tree) -> list[Array]:
    """Return the arrays of `tree`, in the order in which `tree_map` visits them."""
    found: list[Array] = []

    def note(array: Array) -> Array:
        found.append(array)
        return array

    tree_map(note, tree)
    return found


def zip_map(function: Callable[..., Array], first: list[Array], *others: list[Array]) -> list[Array]:
    """Apply `function` to the corresponding arrays of several lists of equal length."""
    return [function(*arrays) for arrays in zip(first, *others, strict=True)]


def zeros(like: list[Array]) -> list[Array]:
    """Return a list of zero arrays with the shapes and dtypes of `like`."""
    return [array * 0.0 for array in like]


def averaged(mean: list[Array], weight: Array, other: list[Array], others: Array) -> tuple[list[Array], Array]:
    """Return the weighted mean of two lists of arrays, and the sum of their weights.

    Args:
        mean: Arrays of any shape.
        weight: Weight of `mean`, 0-d.
        other: Arrays in the shapes of `mean`.
        others: Weight of `other`, 0-d.
    """
    both = weight + others
    share = others / both
    return zip_map(lambda m, o: m + (o - m) * share, mean, other), both


def total(array: Array) -> Array:
    """Return the sum of all elements, 0-d."""
    return _call("total", array)


def minimum(left: Array, right: Array) -> Array:
    """Return the element-wise minimum; a 0-d operand is broadcast."""
    return _call("minimum", left, right)


def maximum(left: Array, right: Array) -> Array:
    """Return the element-wise maximum; a 0-d operand is broadcast."""
    return _call("maximum", left, right)


_NUMPY: dict[str, Callable[..., Array]] = {"total": np.sum, "minimum": np.minimum, "maximum": np.maximum}


def _call(name: str, *operands: Array) -> Array:
    for operand in operands:
        record = getattr(operand, "record", None)
        if record is not None:
            return record(name, *operands)
    return _NUMPY[name](*operands)
