"""Properties of a captured model that workers and servers share, and sums over workers.

The properties are variables, momentum, and division over shards. The sums are those of metric states, and of staleness,
the number of server updates between a pull and its push.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fdt.typing import Array


class Spread(NamedTuple):
    """Mean, median and maximum of the staleness of pushes, in updates."""

    mean: float
    median: float
    largest: float

    def __str__(self) -> str:
        return f"mean {self.mean:.2f}, median {self.median:g}, largest {self.largest:g}"


def spread(counts: Counter[int]) -> Spread | None:
    """Return the statistics of `counts`, the number of pushes by staleness. None if there was no push."""
    taus = sorted(counts.elements())
    return Spread(statistics.fmean(taus), float(statistics.median(taus)), float(taus[-1])) if taus else None


def staleness_fields(counts: Counter[int]) -> dict[str, float]:
    """Return the statistics by the field names of records; empty if there was no push."""
    found = spread(counts)
    if found is None:
        return {}
    return {"staleness_mean": found.mean, "staleness_median": found.median, "staleness_max": found.largest}


def add_up(groups: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the element-wise sum of `groups`, one array per metric variable."""
    first, *others = groups
    total = [array.copy() for array in first]
    for group in others:
        total = [a + b for a, b in zip(total, group, strict=True)]
    return total
