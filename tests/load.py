"""The load of this machine: what promises of time allow for."""

import contextlib
from pathlib import Path

MOST_S = 20.0  # that other load may add


def stalled_s() -> float | None:
    """Seconds in which a process of this machine waited for a core, since it started; None where not measured."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/pressure/cpu").read_text().split()[4].removeprefix("total=")) / 1e6
    return None


def added_s(before: float | None) -> float:
    """The most that other load may have added since `stalled_s` was `before`."""
    now = stalled_s()
    return MOST_S if before is None or now is None else min(MOST_S, now - before)
