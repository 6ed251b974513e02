"""Attached runs: those in a terminal are registered while they last, so that the live page finds them.

Their directories, ~/.local/state/hfdt/attached/train-PID/, hold the files of a detached run (fdt/runs.py), no output.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fdt import runs
from fdt.runs import DetachedRun, ProcessIdentity
from fdt.security import is_private

if TYPE_CHECKING:
    from fdt.cli import RunRequest


class AttachedRun(DetachedRun):
    """A run in a terminal, by its directory. The run removes it a moment before its process ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client, self._here = super().client(), super().here()

    def client(self) -> ProcessIdentity | None:
        return self._client

    def here(self) -> bool:
        return self._here

    def over(self) -> bool:
        """Return whether the run's process has ended. One on another machine has ended with its directory."""
        if self._client is None or not self._here:
            return not self.directory.exists()
        return not self._client.alive()


def home() -> Path:
    """Return the directory of this user's attached runs."""
    return runs.home().parent / "attached"


def attached_runs() -> list[AttachedRun]:
    """Return this user's attached runs. Directories of runs that were killed are removed."""
    place = home()
    found = (
        [AttachedRun(directory) for directory in place.iterdir() if is_private(directory)] if is_private(place) else []
    )
    known = [run for run in found if run.read("run")]  # the others are being created
    for run in known:
        if run.over():
            shutil.rmtree(run.directory, ignore_errors=True)
    return [run for run in known if not run.over()]


@contextlib.contextmanager
def registered(request: "RunRequest", noted: DetachedRun | None, logs: Path) -> Iterator[DetachedRun | None]:
    """Register the run of this process with the directory of its logs. A detached run is registered already.

    Yields:
        The run; None where it cannot be registered, as with a home directory that cannot be written.
    """
    if noted is not None:
        noted.write("logs", {"directory": str(logs)})
        yield noted
        return
    run = AttachedRun(home() / f"{runs.stem(request.script)}-{os.getpid()}")
    try:
        yield run if _created(run, request, logs) else None
    finally:
        shutil.rmtree(run.directory, ignore_errors=True)


def _created(run: AttachedRun, request: "RunRequest", logs: Path) -> bool:
    process = ProcessIdentity.of(os.getpid())
    command = request.said_command
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        if process is None or not is_private(home()):
            return False
        shutil.rmtree(run.directory, ignore_errors=True)  # of an earlier process with this number
        run.directory.mkdir(mode=0o700)
        run.write("logs", {"directory": str(logs)})
        run.write("processes", {"client": asdict(process)})
        run.write("run", runs.described(request.engine, request.script, command, os.getcwd(), request.run_dir))
    except OSError:
        return False
    return True
