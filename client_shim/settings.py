"""What the command line decides about capture."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """`options` go into every job as they are (fdt/job.py); `seed` None: the script's own, else a fresh one."""

    options: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    own_loops: bool = False  # the user wants training outside `fit` to run here, alone
