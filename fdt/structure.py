"""Nested values: conversion between dicts, lists and tuples and a flat list of leaves with a JSON skeleton; logs.

The skeleton is sent in protobuf messages, the leaves packed (fdt/tensors.py). `None` is structure, not a leaf: Keras
data is `(x, y, None)` when there are no sample weights.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def flatten(value: Any) -> tuple[str, list[Any]]:
    """Return the JSON skeleton of `value` and its leaves, in order.

    Dict keys must be strings; their order is kept.
    """
    leaves: list[Any] = []
    return json.dumps(_skeleton(value, leaves)), leaves


def unflatten(skeleton: str, leaves: Sequence[Any]) -> Any:
    """Undo `flatten`. Raises ValueError when the number of leaves does not match."""
    remaining = list(reversed(leaves))
    try:
        value = _rebuild(json.loads(skeleton), remaining)
    except IndexError:
        raise ValueError(f"fewer leaves than the structure has. Received: {len(leaves)} for {skeleton}") from None
    except (AttributeError, TypeError, RecursionError):
        raise ValueError(f"a structure must have the format of `flatten`. Received: {skeleton[:200]}") from None
    if remaining:
        raise ValueError(f"more leaves than the structure has. Received: {len(leaves)} for {skeleton}")
    return value


def _skeleton(value: Any, leaves: list[Any]) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return {"dict": [[key, _skeleton(item, leaves)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {
            type(value).__name__ if type(value) in (list, tuple) else "tuple": [_skeleton(v, leaves) for v in value]
        }
    leaves.append(value)
    return 0


def _rebuild(skeleton: Any, remaining: list[Any]) -> Any:
    if skeleton is None:
        return None
    if skeleton == 0:
        return remaining.pop()
    ((kind, items),) = skeleton.items()
    if kind == "dict":
        return {key: _rebuild(item, remaining) for key, item in items}
    values = [_rebuild(item, remaining) for item in items]
    return tuple(values) if kind == "tuple" else values


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars of `logs`. Dicts inside are flattened, as Keras does with a compiled metric's result."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found.update(numbers(value))
        elif np.ndim(value) == 0:
            found[name] = float(value)
    return found
