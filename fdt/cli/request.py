"""What a command line asks of `run`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunRequest:
    """Who is to train, and what is shown and kept. `workers` is None where the user named no number."""

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
    resumed: bool = False  # --log-dir is that of a run which goes on
    own_summary: bool = False  # the command says at the end what there is to say
    script: str = ""
    run_dir: Path | None = None  # of --run-dir or --resume
    detach: bool = False
    early: bool = True  # start the engine before the script, not when it first trains
    typed: Sequence[str] = ()  # our own words of the command line, for a run that is kept
