"""The request that a command line makes of `run`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunRequest:
    """Which engine or server trains, and what is shown and kept. `workers` is None where the user gave no number."""

    engine: str
    workers: int | None = None
    server: str | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    log_dir: Path | None = None
    tensorboard: Path | None = None
    verbose: bool = False
    quiet: bool = False
    resumed: bool = False  # the logs in --log-dir are of the run that is resumed
    own_summary: bool = False  # the command prints its own summary
    script: str = ""
    run_dir: Path | None = None  # the value of --run-dir or --resume
    detach: bool = False
    early: bool = True  # start the engine before the script, not when it first trains
    typed: Sequence[str] = ()  # our own arguments of the command line, to record with the run
