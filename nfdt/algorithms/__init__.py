"""NFDT's asynchronous algorithms, one per file, and their registry: the file's name is the algorithm's name.

fdt/algorithm_registry.py defines the syntax of an algorithm with parameters.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fdt.algorithm_registry import AlgorithmRegistry, Options
from nfdt.algorithm import AsyncAlgorithm
from nfdt.options import CAPTURED, DEFAULT, PLAIN

_book = AlgorithmRegistry(sys.modules[__name__], AsyncAlgorithm, "nfdt/algorithm.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def spelled(text: str | None, options: Options, given: Mapping[str, Any]) -> str | None:
    """Return the algorithm `text` with the given `options`, or None if none asks for one. Raises UsageError."""
    return _book.spelled(text, DEFAULT, options, given)


def default_for(optimizer: Any, trainable: Sequence[Any]) -> str:
    """Return the default algorithm for an optimizer.

    Args:
        optimizer: The captured optimizer.
        trainable: The trainable variables of the whole model, so that every shard and worker chooses alike.
    """
    from nfdt.model.variables import can_be_off  # imports TensorFlow, which listing names does not need

    return default(trainable, can_be_off=can_be_off(optimizer))


def default(trainable: Sequence[Any], *, can_be_off: bool) -> str:
    """Return the default algorithm. `can_be_off`: whether an algorithm's momentum can replace the optimizer's."""
    from fdt.keras.variables import tensor_variable

    if any(tensor_variable(variable).dtype.base_dtype == "float16" for variable in trainable):
        return PLAIN  # the default's running squares and its 1e-30 underflow in float16: 0 / 0
    constrained = any(getattr(variable, "constraint", None) is not None for variable in trainable)
    if can_be_off and not constrained:  # a look-ahead would send weights outside their constraint
        return DEFAULT
    return CAPTURED
