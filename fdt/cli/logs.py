"""Where a run's members write their logs, and for how long."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fdt.errors import UserError

_MEMBER_LOG = re.compile(r"(worker|server)-\d+\.log|mpirun(-server)?\.log")  # and nothing else of the user's directory


@dataclass
class Logs:
    """`keep`: something failed, and what was said of it names a log here."""

    directory: Path
    keep: bool = False


@contextlib.contextmanager
def log_directory(engine: str, chosen: Path | None, *, resumed: bool = False) -> Iterator[Logs]:
    """The user's --log-dir; or a private one of our own, removed unless the run failed and said something.

    `resumed`: what is in --log-dir is this run's own.
    """
    if chosen is not None:
        yield Logs(prepared(chosen, resumed=resumed), keep=True)
        return
    logs = Logs(Path(tempfile.mkdtemp(prefix=f"{engine}-")))
    try:
        yield logs
    except UserError:
        logs.keep = True
        raise
    finally:
        if not (logs.keep and any(file.stat().st_size for file in logs.directory.glob("*.log"))):
            shutil.rmtree(logs.directory, ignore_errors=True)


def prepared(directory: Path, *, resumed: bool = False) -> Path:
    """Make `directory`, absolute, without an earlier run's member logs. Raises UserError where that cannot be.

    `resumed`: those are this run's.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file in directory.iterdir():
            if not resumed and _MEMBER_LOG.fullmatch(file.name):
                file.unlink()
    except OSError as error:
        raise UserError(f"--log-dir must be a directory that can be written. Received: {error}") from None
    return directory.resolve()
