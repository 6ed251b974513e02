"""Sum of the metric states of several workers: the states of Keras's metrics are sums and counts."""

from collections.abc import Sequence

from fdt.typing import Array


def add_up(groups: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the element-wise sum of `groups`, one array per metric variable."""
    first, *others = groups
    total = [array.copy() for array in first]
    for group in others:
        total = [a + b for a, b in zip(total, group, strict=True)]
    return total
