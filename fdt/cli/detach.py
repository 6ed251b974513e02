"""The option `run --detach`: run the script and its engine in a session of their own, which needs no terminal."""

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
    from fdt.cli.arguments import RunRequest

try:
    _STARTED_IN = Path.cwd()  # recorded before --resume changes the working directory
except FileNotFoundError:  # the directory was removed
    _STARTED_IN = Path(os.sep)


def due(request: "RunRequest") -> bool:
    """Return whether this is the user's command, which only starts the detached one."""
    return request.detach and VARIABLE not in os.environ


def taken(request: "RunRequest") -> "tuple[RunRequest, DetachedRun | None]":
    """Return, in the detached process, `request` with its log directory, and the run; elsewhere `request` and None.

    The variable is removed from the environment: a run that the script starts is another run.
    """
    directory = os.environ.pop(VARIABLE, "") if request.detach else ""
    if not directory:
        return request, None
    run = DetachedRun(Path(directory))
    return replace(request, log_dir=request.log_dir or run.logs), run


def start(request: "RunRequest") -> int:
    """Start this command again as a detached run.

    Its output is shown on stderr until it trains; then its name is printed on stdout. Ctrl-C until then ends the run.

    Returns:
        0 when the run trains, or its exit code when it ends before that.
    """
    from fdt.runs.follow import Follower, stop

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
                tell(f"trains in the background; to see it: {attach} {run.name}; to end it: {attach} --stop {run.name}")
                return 0
    except KeyboardInterrupt:
        stop(run)
        return EXIT_INTERRUPTED
    supervisor.wait()
    return run.exit_code()


@dataclass(frozen=True)
class DetachedReporters:
    """Prints a line for the user on stderr."""

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
