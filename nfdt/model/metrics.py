"""Metric states of several workers as one: Keras's metrics are sums and counts, so states add up."""

from collections.abc import Sequence

from fdt.tensors import Array


def add_up(groups: Sequence[Sequence[Array]]) -> list[Array]:
    """Element by element, one array per metric variable."""
    first, *others = groups
    total = [array.copy() for array in first]
    for group in others:
        total = [a + b for a, b in zip(total, group, strict=True)]
    return total
