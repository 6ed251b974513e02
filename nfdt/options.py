"""Options of one job from the command line, as JobSpec.options holds them (strings, "1" for a flag)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdt.errors import UsageError
from fdt.options import is_on

if TYPE_CHECKING:  # imports NumPy, which the command line does not need
    from nfdt.algorithm import AsyncAlgorithm

CHANNELS = ("auto", "shm", "grpc")
OVERLAPS = ("auto", "on", "off")
CHECKPOINT_S = 30.0
ON_NAN = ("", "stop", "skip")
DEFAULT = "ddc_asgd"  # the algorithm where none is chosen
CAPTURED = f"{DEFAULT}(momentum='captured')"  # the same for optimizers that keep their own momentum
PLAIN = "asgd"  # the algorithm that works with every model and optimizer
SYNCHRONOUS = "ssgd"  # that of --sync


@dataclass(frozen=True)
class Options:
    """Options of one job.

    Attributes:
        rule: The algorithm as nfdt/algorithm_registry.py reads it, such as "dc_asgd(lam=0.1)"; "": chosen by optimizer
            and weights.
        channel: Transport of tensors; "auto" is shared memory if worker and server share a host.
        overlap: Whether push and pull overlap with the next gradient, on weights one update older.
        overlap_epochs: Whether workers continue while the client validates and runs its callbacks.
        restarts: Number of lost members that are replaced.
        min_np: Smallest number of workers with which a job continues; 0: all.
        checkpoint_s: Seconds between the servers' checkpoints; 0: none.
        on_nan: Treatment of a gradient that is not finite: "stop", "skip"; "" stops unless callbacks receive every
            step.
    """

    rule: str = ""
    channel: str = "auto"
    overlap: str = "auto"
    overlap_epochs: bool = False
    restarts: int = 0
    min_np: int = 0
    on_nan: str = ""
    checkpoint_s: float = 0.0

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Options":
        """Return the options of a job. Raises UsageError that names the valid values."""
        chosen = cls(
            options.get("rule", ""),
            options.get("channel", "auto"),
            options.get("overlap", "auto"),
            is_on(options, "overlap_epochs"),
            int(options.get("restarts", 0)),
            int(options.get("min_np", 0)),
            options.get("on_nan", ""),
            float(options.get("checkpoint_every", CHECKPOINT_S if int(options.get("restarts", 0)) else 0)),
        )
        _check("--channel", chosen.channel, CHANNELS)
        _check("--overlap", chosen.overlap, OVERLAPS)
        _check("--on-nan", chosen.on_nan, ON_NAN)
        return chosen


def lanes_of(options: Options, rule: "AsyncAlgorithm", workers: int, *, fed: bool) -> int:
    """Return the number of lanes per worker: 1, or 2 to overlap. Every process of a job computes the same number.

    A worker that pushes and pulls while it computes counts as two workers for the algorithm. Each lane pulls, computes
    and pushes independently; only one lane computes at a time. So the state that an algorithm keeps per worker (pull,
    momentum, delay) stays correct, and the scheduler needs no code for overlap. A lane's gradient is one update staler,
    because the other lane pushes in between.

    "auto" overlaps only where this saves time. It does not overlap over shared memory (a push is one copy), with one
    worker (its gradients would become stale), or where the algorithm makes workers wait.

    Args:
        options: The job's options.
        rule: The algorithm.
        workers: Number of workers.
        fed: Whether the client sends the batches, in an order that two lanes would not keep.

    Raises:
        UsageError: If `--overlap on` is given for an algorithm that makes workers wait.
    """
    if options.overlap == "on" and rule.waits:
        raise UsageError("--overlap on needs a rule that does not wait for other workers. Received: one that waits")
    if fed:
        return 1
    if options.overlap == "auto":
        return 2 if options.channel == "grpc" and workers > 1 and not rule.waits else 1
    return 2 if options.overlap == "on" else 1


def _check(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UsageError(f"{name} must be one of {', '.join(valid)}. Received: {value}")
