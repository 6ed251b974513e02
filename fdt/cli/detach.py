"""`run --detach`: the whole run, script and engine, in a session of its own that no terminal ends."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fdt.errors import EXIT_INTERRUPTED
from fdt.runs.registry import VARIABLE, DetachedRun, create

if TYPE_CHECKING:
    from fdt.cli.request import RunRequest

try:
    _STARTED_IN = Path.cwd()  # before --resume goes where its run was started
except FileNotFoundError:  # removed meanwhile
    _STARTED_IN = Path(os.sep)


def due(request: "RunRequest") -> bool:
    """Is this the command that the user typed, which only starts the detached one?"""
    return request.detach and VARIABLE not in os.environ


def taken(request: "RunRequest") -> "tuple[RunRequest, DetachedRun | None]":
    """In the detached process: the run it is, and `request` with its logs there. Else None.

    The variable leaves the environment: what the script starts is another run.
    """
    directory = os.environ.pop(VARIABLE, "") if request.detach else ""
    if not directory:
        return request, None
    run = DetachedRun(Path(directory))
    return replace(request, log_dir=request.log_dir or run.logs), run


def start(request: "RunRequest") -> int:
    """Start this very command once more, kept; return 0 when it trains, or its exit code when it ends before that.

    What it prints until then is shown on stderr; stdout gets the run's name. Ctrl-C meanwhile ends the run.
    """
    from fdt.runs.follow import Follower
    from fdt.runs.stop import stop

    command = [sys.executable, "-u", *sys.orig_argv[1:]]
    kept = None if request.run_dir is None else request.run_dir.absolute()
    run = create(request.engine, request.script, command, cwd=_STARTED_IN, run_dir=kept)
    tell = DetachedReporters(request.engine, request.quiet)
    tell(f"{run.name} starts; its output is in {run.output}")
    supervisor = _keep(run)
    try:
        follower = Follower(run, sys.stderr)
        while not follower.follow():
            if run.begun():
                follower.close()
                click.echo(run.name)
                attach = f"{request.engine} attach"
                tell(f"trains on its own; to see it: {attach} {run.name}; to end it: {attach} --stop {run.name}")
                return 0
    except KeyboardInterrupt:
        stop(run)
        return EXIT_INTERRUPTED
    supervisor.wait()
    return run.exit_code()


@dataclass(frozen=True)
class DetachedReporters:
    """One line for the user, on stderr."""

    name: str
    quiet: bool = False

    def __call__(self, text: str) -> None:
        if not self.quiet:
            click.echo(f"{self.name}: {text}", err=True)


def _keep(run: DetachedRun) -> "subprocess.Popen[bytes]":
    descriptor = os.open(run.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "fdt.runs.supervisor", str(run.directory)],
            cwd=_STARTED_IN,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
