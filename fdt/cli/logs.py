"""The directory of a run's logs, and how long it is kept."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fdt.errors import UserError

_MEMBER_LOG = re.compile(r"(worker|server)-\d+\.log|mpirun(-server)?\.log")  # the only files that are removed


@dataclass
class Logs:
    """A log directory. `keep`: a failure's message names a log in it."""

    directory: Path
    keep: bool = False


@contextlib.contextmanager
def log_directory(engine: str, chosen: Path | None, *, resumed: bool = False) -> Iterator[Logs]:
    """Yield the user's --log-dir, or a private directory that is removed unless the run failed and has logs.

    `resumed`: the logs in --log-dir are this run's own.
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
    """Make `directory`, remove the members' logs of an earlier run, and return its absolute path.

    Args:
        directory: The directory.
        resumed: The logs there are this run's: keep them.

    Raises:
        UserError: The directory cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file in directory.iterdir():
            if not resumed and _MEMBER_LOG.fullmatch(file.name):
                file.unlink()
    except OSError as error:
        raise UserError(f"--log-dir must be a directory that can be written. Received: {error}") from None
    return directory.resolve()
