"""Command `attach`: lists, shows and ends detached runs, as text or as JSON lines."""

import io
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fdt.cli.detach import Follower, NotePrinter, start_of, stop
from fdt.cli.options import CountType
from fdt.errors import UsageError, UserError
from fdt.launch import describe
from fdt.runs import DetachedRun, find, home, runs
from frontends.report import FILE
from frontends.shared_command import SharedCommand, print_table

EXIT_PIPE = 128 + signal.SIGPIPE

EXAMPLES = """\b
Examples:
  hfdt run --detach train.py -np 4     start a run; print its name, train-1, when it trains
  hfdt attach                          list the runs and their states
  hfdt attach train-1                  show its output, old and new; Ctrl-C leaves it running
  hfdt attach -n 0 train-1             show its new output only
  hfdt attach --stop train-1           end it, as Ctrl-C would
  hfdt attach --json train-1           show its records and its output as JSON lines
  hfdt attach --remove train-1         delete a run that has ended, with its output and logs

Exit codes: that of the run (128 + the number of a signal) once it has ended; 130 after Ctrl-C; 2 for no such run.
"""


@click.command("attach", cls=SharedCommand, epilog=EXAMPLES)
@click.argument("name", metavar="[RUN]", default="", required=False)
@click.option(
    "-n", "--lines", type=CountType("a number of lines", 0), help="Begin with the last N lines.  [default: all]"
)
@click.option("--stop", "stops", is_flag=True, help="End the run: the script gets KeyboardInterrupt.")
@click.option("--remove", "removes", is_flag=True, help="Delete a run that has ended, with its output and logs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: one for each run; with RUN, its records.")
def attach_command(name: str, lines: int | None, stops: bool, removes: bool, as_json: bool) -> int:
    """Show a run that `run --detach` started. Without RUN: list all such runs of both engines."""
    command = str(click.get_current_context().find_root().info_name)
    if not name:
        if stops or removes or lines is not None:
            raise UsageError(f"-n, --stop and --remove need a run's name; `{command} attach` lists the runs")
        (_list_as_json if as_json else _list)(runs())
        return 0
    if as_json and (stops or removes):
        raise UsageError("--json shows runs. Received: --stop or --remove too; leave one of them out")
    run, print_note = find(name), NotePrinter(command)
    if stops:
        return _stopped(run, print_note)
    if removes:
        run.remove()
        return 0
    return _watch(run, lines, print_note, _show_as_json if as_json else _show)


def _stopped(run: DetachedRun, print_note: NotePrinter) -> int:
    if run.over():
        print_note(f"{run.name} had already ended: {run.state()}")
        return 0
    if not run.is_local():
        raise UserError(f"a run can be stopped on its own machine only. Received: {run.name}, {run.state()}")
    stop(run)
    print_note(f"{run.name}: {run.state()}")
    return 0 if run.over() else 1


def _show(run: DetachedRun, lines: int | None) -> None:
    follower = Follower(run, sys.stdout, lines)
    try:
        while not follower.follow():
            pass
    finally:
        follower.close()


def _watch(
    run: DetachedRun, lines: int | None, print_note: NotePrinter, show: Callable[[DetachedRun, int | None], None]
) -> int:
    """Show the run's output until it ends; return its exit code."""
    try:
        show(run, lines)
    except FileNotFoundError:
        raise UserError(f"{run.directory} has no output of the run") from None
    except KeyboardInterrupt:
        print_note(f"{run.name} continues; `{print_note.name} attach {run.name}` shows it again, --stop ends it")
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    if run.killed():
        print_note(_how_it_ended(run))
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
    print_table([("RUN", "STATE", "AT", "SINCE", "COMMAND"), *(_row(run) for run in found)])


def _row(run: DetachedRun) -> tuple[str, str, str, str, str]:
    noted = run.read("run")
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(noted["created"]))
    return run.name, run.state(), run.at(), since, shlex.join(_notes(noted))


def _notes(noted: dict[str, list[str]]) -> list[str]:
    """Return the user's command from the engine's name and `run` on."""
    command = noted["command"]
    return [str(noted["engine"]), *command[command.index("run") :]] if "run" in command else command


# -- JSON lines -------------------------------------------------------------------------------------------------------
def _list_as_json(found: Sequence[DetachedRun]) -> None:
    for run in found:
        noted = run.read("run")
        kept = {name: noted[name] for name in ("engine", "script", "cwd", "run_dir", "created")}
        code = run.exit_code() if run.over() else None
        state = {"name": run.name, "state": run.state(), "at": run.at(), "over": run.over(), "exit_code": code}
        _print({**state, **kept, "command": _notes(noted), "output": str(run.output), "logs": str(_logs(run))})


def _print(record: Mapping[str, Any]) -> None:
    click.echo(json.dumps(record))


def _logs(run: DetachedRun) -> Path:
    return Path(run.read("logs").get("directory", run.logs))


class _OutputLines(io.StringIO):
    """Prints each line that is written to it as a record."""

    encoding = "utf-8"

    def flush(self) -> None:
        *lines, rest = self.getvalue().split("\n")
        self.seek(0)
        self.truncate()
        self.write(rest)
        for line in lines:
            _print({"kind": "output", "text": line})


class _Records:
    """Prints the lines of a run's records: the last `lines` of those that are there (None: all), and later ones."""

    def __init__(self, file: Path, lines: int | None) -> None:
        self._file = file
        self._at = start_of(file.read_bytes(), lines) if lines is not None and file.exists() else 0

    def follow(self) -> None:
        if not self._file.exists():
            return
        with open(self._file, "rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._at += len(whole) + 1
            click.echo(whole.decode(errors="replace"))


def _show_as_json(run: DetachedRun, lines: int | None) -> None:
    """Print what the script prints, and the run's records, as they come; at last how the run ended."""
    output, records = _OutputLines(), _Records(_logs(run) / FILE, lines)
    follower, over = Follower(run, output, lines), False
    try:
        while not over:
            over = follower.follow()
            records.follow()
    finally:
        follower.close()
    output.write("\n" if output.getvalue() else "")
    output.flush()
    _print({"kind": "end", "exit_code": run.exit_code(), "state": run.state()})
