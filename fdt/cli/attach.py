"""The command `attach`: list, show and end detached runs."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence

import click

from fdt.cli.detach import DetachedReporters
from fdt.cli.options import CountType
from fdt.cli.program import Command
from fdt.errors import UsageError, UserError
from fdt.launch.local import describe
from fdt.runs.follow import Follower, stop
from fdt.runs.registry import DetachedRun, find, home, runs

EXIT_PIPE = 128 + signal.SIGPIPE

EXAMPLES = """\b
Examples:
  hfdt run --detach train.py -np 4     start a run; print its name, train-1, when it trains
  hfdt attach                          list the runs and their states
  hfdt attach train-1                  show its output, old and new; Ctrl-C leaves it running
  hfdt attach -n 0 train-1             show its new output only
  hfdt attach --stop train-1           end it, as Ctrl-C would
  hfdt attach --remove train-1         delete a run that has ended, with its output and logs

Exit codes: that of the run (128 + the number of a signal) once it has ended; 130 after Ctrl-C; 2 for no such run.
"""


@click.command("attach", cls=Command, epilog=EXAMPLES)
@click.argument("name", metavar="[RUN]", default="", required=False)
@click.option(
    "-n", "--lines", type=CountType("a number of lines", 0), help="Begin with the last N lines.  [default: all]"
)
@click.option("--stop", "stops", is_flag=True, help="End the run: the script gets KeyboardInterrupt.")
@click.option("--remove", "removes", is_flag=True, help="Delete a run that has ended, with its output and logs.")
def attach_command(name: str, lines: int | None, stops: bool, removes: bool) -> int:
    """Show a run that `run --detach` started. Without RUN: list all such runs of both engines."""
    command = str(click.get_current_context().find_root().info_name)
    if not name:
        if stops or removes or lines is not None:
            raise UsageError(f"-n, --stop and --remove need a run's name; `{command} attach` lists the runs")
        _list(runs())
        return 0
    run, tell = find(name), DetachedReporters(command)
    if stops:
        return _stopped(run, tell)
    if removes:
        run.remove()
        return 0
    return _watch(run, lines, tell)


def _stopped(run: DetachedRun, tell: DetachedReporters) -> int:
    if run.over():
        tell(f"{run.name} had already ended: {run.state()}")
        return 0
    if not run.here():
        raise UserError(f"a run can be stopped on its own machine only. Received: {run.name}, {run.state()}")
    stop(run)
    tell(f"{run.name}: {run.state()}")
    return 0 if run.over() else 1


def _watch(run: DetachedRun, lines: int | None, tell: DetachedReporters) -> int:
    """Show the run's output until it ends; return its exit code."""
    try:
        follower = Follower(run, sys.stdout, lines)
        try:
            while not follower.follow():
                pass
        finally:
            follower.close()
    except FileNotFoundError:
        raise UserError(f"{run.directory} has no output of the run") from None
    except KeyboardInterrupt:
        tell(f"{run.name} continues; `{tell.name} attach {run.name}` shows it again, --stop ends it")
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    if run.killed():
        tell(_how_it_ended(run))
    return run.exit_code()


def _how_it_ended(run: DetachedRun) -> str:
    """Return how the run ended, and what the user can do."""
    noted, end = run.read("run"), run.read("end")
    how = f"was ended by {describe(end['code'])}" if end else "ended without an exit code (was the machine restarted?)"
    if noted["run_dir"]:
        then = f"{noted['engine']} run --resume {noted['run_dir']} continues from its last checkpoint"
    else:
        then = "it had no checkpoints; with --run-dir DIR the next run can continue after such an end"
    return f"{run.name} {how}; {then}; its logs: {run.logs}"


def _list(found: Sequence[DetachedRun]) -> None:
    if not found:
        click.echo(f"no detached runs in {home()}; `run --detach` starts one")
        return
    rows = [("RUN", "STATE", "AT", "SINCE", "COMMAND"), *(_row(run) for run in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for *cells, last in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), last]))


def _row(run: DetachedRun) -> tuple[str, str, str, str, str]:
    noted = run.read("run")
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(noted["created"]))
    return run.name, run.state(), run.at(), since, shlex.join(_words(noted))


def _words(noted: dict[str, list[str]]) -> list[str]:
    """Return the user's command from the engine's name and `run` on."""
    command = noted["command"]
    return [str(noted["engine"]), *command[command.index("run") :]] if "run" in command else command
