"""The command line's decisions about capture."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """The command line's decisions about capture.

    Attributes:
        options: Options that go into every job unchanged (fdt/job.py).
        seed: The seed of the jobs; None: the script's own, otherwise a random one.
        own_loops: Training outside `fit` may run in this process only, because the user asked for it.
    """

    options: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    own_loops: bool = False
