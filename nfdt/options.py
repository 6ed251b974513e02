"""What the command line says of one job, as JobSpec.options carries it (strings, "1" for a flag)."""

from collections.abc import Mapping
from dataclasses import dataclass

from fdt.errors import UsageError
from fdt.options import is_on

CHANNELS = ("auto", "shm", "grpc")
OVERLAPS = ("auto", "on", "off")
CHECKPOINT_S = 30.0
ON_NAN = ("", "stop", "skip")
SERVER_OPTIMIZER = {  # options, as click names them, that are parameters of the rule server_optimizer
    "local_steps": "local_steps",
    "server_optimizer": "optimizer",
    "server_lr": "lr",
    "server_momentum": "momentum",
}


@dataclass(frozen=True)
class Options:
    """rule: "" (chosen by optimizer and weights), or as nfdt/algorithm_registry.py reads it, "dc_asgd(lam=0.1)".

    channel: how tensors travel; "auto" is shared memory where worker and server share a host.
    overlap: whether push and pull go on while the next gradient is computed, on weights one update older.
    overlap_epochs: whether workers go on while the client validates and runs its callbacks.
    restarts: how many lost members are replaced.  min_np: how few workers may go on without; 0: all are needed.
    checkpoint_s: seconds between the servers' checkpoints; 0: none.
    on_nan: what becomes of a gradient that is not finite: "stop", "skip"; "" stops unless the script sees every step.
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
        """Raises UsageError naming what is valid."""
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


def _check(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UsageError(f"{name} must be one of {', '.join(valid)}. Received: {value}")
