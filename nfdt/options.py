"""Options of one job from the command line, as JobSpec.options holds them (strings, "1" for a flag)."""

from collections.abc import Mapping
from dataclasses import dataclass

from fdt.errors import UsageError

CHANNELS = ("auto", "shm", "grpc")
OVERLAPS = ("auto", "on", "off")
CHECKPOINT_S = 30.0
ON_NAN = ("", "stop", "skip")
DEFAULT = "ddc_asgd"  # the algorithm where none is chosen
CAPTURED = f"{DEFAULT}(momentum='captured')"  # the same for optimizers that keep their own momentum
PLAIN = "asgd"  # the algorithm that works with every model and optimizer
SYNCHRONOUS = "ssgd"  # that of --sync


def approximation(name: str, workers: int, *, exact_alone: bool = True) -> str:
    """Return the line for users of an algorithm that has no note of its own; "" for one worker that is exact."""
    if workers == 1 and exact_alone:
        return ""
    on, those = ("1 worker", "may not be") if workers == 1 else (f"{workers} workers", "are not")
    return f"{name} on {on} approximates: numbers {those} those of one machine"


@dataclass(frozen=True)
class Options:
    """Options of one job.

    Attributes:
        rule: The algorithm as nfdt/algorithms/__init__.py reads it, such as "dc_asgd(lam=0.1)"; "": chosen by optimizer
            and weights.
        channel: Transport of tensors; "auto" is shared memory if worker and server share a host.
        overlap: Whether push and pull overlap with the next gradient, on weights one update older.
        overlap_epochs: Whether workers continue while the client validates and runs its callbacks.
        restarts: Number of lost members that are replaced.
        min_np: Smallest number of workers with which a job continues; 0: all.
        checkpoint_s: Seconds between the servers' checkpoints; 0: none.
        on_nan: Treatment of a gradient that is not finite: "stop", "skip"; "" stops unless callbacks receive every
            step.
        compress: The compressors of pushes and pulls, as nfdt/compressors reads them; "": none.
        timeline: Whether workers and servers report spans of time (fdt/timeline.py).
    """

    rule: str = ""
    channel: str = "auto"
    overlap: str = "auto"
    overlap_epochs: bool = False
    restarts: int = 0
    min_np: int = 0
    on_nan: str = ""
    checkpoint_s: float = 0.0
    compress: str = ""
    timeline: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Options":
        """Return the options of a job. Raises UsageError that names the valid values."""
        from fdt.job import is_on, number_of  # imports protobuf, which a command that trains nothing does not need

        restarts = int(number_of(options, "restarts"))
        chosen = cls(
            options.get("rule", ""),
            options.get("channel", "auto"),
            options.get("overlap", "auto"),
            is_on(options, "overlap_epochs"),
            restarts,
            int(number_of(options, "min_np")),
            options.get("on_nan", ""),
            number_of(options, "checkpoint_every", CHECKPOINT_S if restarts else 0),
            options.get("compress", ""),
            is_on(options, "timeline"),
        )
        _check("--channel", chosen.channel, CHANNELS)
        _check("--overlap", chosen.overlap, OVERLAPS)
        _check("--on-nan", chosen.on_nan, ON_NAN)
        return chosen


def _check(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UsageError(f"{name} must be one of {', '.join(valid)}. Received: {value}")
