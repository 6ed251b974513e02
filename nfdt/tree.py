"""Trees of arrays, and the few functions of arrays that operators do not spell.

A rule is written once and meets three kinds of array: NumPy's (tests), TensorFlow's, and the recorded ones of
nfdt/server/traced_program.py, from which the server compiles its function. Operators work on all of them; what is not
an
operator is a function here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # NumPy's, TensorFlow's or recorded
Tree = Any  # lists, tuples, dicts and dataclasses of arrays; None and plain Python values are structure


def is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def tree_map(function: Callable[[Array], Any], tree: Tree) -> Any:
    """Apply `function` to every array of `tree`; whatever is not an array stays as it is."""
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
    """The arrays of `tree`, in the order `tree_map` meets them."""
    found: list[Array] = []

    def note(array: Array) -> Array:
        found.append(array)
        return array

    tree_map(note, tree)
    return found


def zip_map(function: Callable[..., Array], first: list[Array], *others: list[Array]) -> list[Array]:
    """Apply `function` to the arrays of several equal lists, side by side."""
    return [function(*arrays) for arrays in zip(first, *others, strict=True)]


def zeros(like: list[Array]) -> list[Array]:
    return [array * 0.0 for array in like]


def averaged(mean: list[Array], weight: Array, other: list[Array], others: Array) -> tuple[list[Array], Array]:
    """The mean of two lists of arrays that weigh `weight` and `others`, and what it weighs."""
    both = weight + others
    share = others / both
    return zip_map(lambda m, o: m + (o - m) * share, mean, other), both


def total(array: Array) -> Array:
    """The sum of all elements, 0-d."""
    return _call("total", array)


def minimum(left: Array, right: Array) -> Array:
    return _call("minimum", left, right)


def maximum(left: Array, right: Array) -> Array:
    return _call("maximum", left, right)


_NUMPY: dict[str, Callable[..., Array]] = {"total": np.sum, "minimum": np.minimum, "maximum": np.maximum}


def _call(name: str, *operands: Array) -> Array:
    for operand in operands:
        record = getattr(operand, "record", None)
        if record is not None:
            return record(name, *operands)
    return _NUMPY[name](*operands)
