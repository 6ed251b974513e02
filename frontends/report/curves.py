"""Curves of bounded size: each bucket of neighbouring points keeps its smallest and its largest value."""

import math
from dataclasses import dataclass, field

Point = tuple[float, float, float]  # epoch, seconds, value
LIMIT = 400  # buckets of a curve


@dataclass
class Curve:
    """A curve of points that are added in order. Memory and drawing time are bounded; peaks are kept.

    Attributes:
        limit: Largest number of buckets. Where it is exceeded, neighbouring buckets are merged.
    """

    limit: int = LIMIT
    _buckets: list[tuple[Point, Point]] = field(default_factory=list)  # smallest and largest value
    _per_bucket: int = 1
    _last: list[Point] = field(default_factory=list)  # the points of the bucket that is not full

    def add(self, epoch: float, seconds: float, value: float) -> None:
        """Add a finite value."""
        self._last.append((epoch, seconds, value))
        if len(self._last) == self._per_bucket:
            self._buckets.append(_extremes(self._last))
            self._last = []
            if len(self._buckets) == self.limit:
                pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
                self._buckets = [_extremes([*a, *b]) for a, b in pairs]
                self._per_bucket *= 2

    def points(self) -> list[Point]:
        """Return the points to draw, in order; the last one that was added is among them."""
        kept = [point for extremes in self._buckets for point in sorted(set(extremes))]
        if self._last:
            kept += sorted({*_extremes(self._last), self._last[-1]})
        return kept

    def as_json(self) -> dict[str, list[float]]:
        """Return the points as columns: e (epochs), t (seconds), y."""
        epochs, seconds, values = zip(*self.points(), strict=True) if self.points() else ((), (), ())
        return {"e": _rounded(epochs, 4), "t": _rounded(seconds, 3), "y": [float(f"{value:.6g}") for value in values]}


Curves = dict[str, dict[str, Curve]]  # by name and kind


def curve_of(curves: Curves, name: str, kind: str) -> Curve:
    """Return a curve of `curves`, which is empty where it is new."""
    return curves.setdefault(name, {}).setdefault(kind, Curve())


def as_json(curves: Curves) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the points of each curve, as Curve.as_json does."""
    return {name: {kind: curve.as_json() for kind, curve in kinds.items()} for name, kinds in curves.items()}


def finite(value: object) -> float | None:
    """Return `value` as a finite number, else None. protobuf's JSON writes "NaN" and "Infinity" as strings."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of many digits
        return None
    return number if math.isfinite(number) else None


def _extremes(points: list[Point]) -> tuple[Point, Point]:
    return min(points, key=lambda point: point[2]), max(points, key=lambda point: point[2])


def _rounded(values: tuple[float, ...], digits: int) -> list[float]:
    return [round(value, digits) for value in values]
