"""Formats of numbers for users, and of logs as Keras prints them."""

from collections.abc import Mapping
from typing import Any

_TOLD_APART = ("staleness_mean", "staleness_median", "staleness_max", "simulated_s")


def number(value: float) -> str:
    """Return `value` as Keras's progress bar writes it: 0.1234, or 1.2345e-05 when it is small."""
    return f"{value:.4f}" if abs(value) > 1e-3 or value == 0 else f"{value:.4e}"


def logs(values: Mapping[str, Any]) -> str:
    """Return `accuracy: 0.8812 - loss: 0.3211`, followed by simulated time and mean staleness where given."""
    shown = [f"{name}: {_value(value)}" for name, value in values.items() if name not in _TOLD_APART]
    if "simulated_s" in values:
        shown.append(f"simulated: {duration(values['simulated_s'])}")
    if "staleness_mean" in values:
        shown.append(f"staleness: {values['staleness_mean']:.2f}")
    return " - ".join(shown)


def duration(seconds: float) -> str:
    """Return `0.4s`, `42s`, `3:07`, `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if whole < 60:
        return f"{whole}s"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(samples: float, seconds: float) -> str:
    """Return `12,345 samples/s` with at least three digits; "" without samples or time."""
    if seconds <= 0 or samples <= 0:
        return ""
    per_second = samples / seconds
    return f"{per_second:,.0f} samples/s" if per_second >= 100 else f"{per_second:.3g} samples/s"


def nbytes(count: float) -> str:
    """Return `512 bytes`, `1.2 kB`, `3.4 MB`: powers of 1000."""
    if count < 1000:
        return f"{count:.0f} bytes"
    units = ["TB", "GB", "MB", "kB"]
    count /= 1000
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:.3g} {units[-1]}"


def _value(value: Any) -> str:
    try:
        return number(float(value))
    except (TypeError, ValueError):  # a metric that returns an array
        return " ".join(str(value).split())
