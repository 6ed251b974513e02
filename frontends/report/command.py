"""The command `report`: the pages of finished or running runs, one of them or several overlaid."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fdt.errors import UsageError, UserError
from frontends.report import FILE, REPORT
from frontends.shared_command import SharedCommand

if TYPE_CHECKING:
    from frontends.report.reader import RunReader

EXAMPLES = """\b
Examples:
  hfdt report logs                     write logs/report.html from logs/records.jsonl
  hfdt report logs/a logs/b            write report.html here, with the curves of both
  hfdt report train-1 --out run.html   a detached run, by its name; it may still be running
"""
OUT = "The file to write; - is stdout.  [default: report.html in the run's directory; for several runs, here]"


@click.command("report", cls=SharedCommand, epilog=EXAMPLES)
@click.argument("runs", metavar="RUN [RUN...]", nargs=-1)
@click.option("--out", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE", help=OUT)
def report_command(runs: tuple[str, ...], out: Path | None) -> int:
    """Write one HTML file about runs.

    RUN is the directory of --log-dir or --run-dir, its records.jsonl, or the name of a run that `attach` or `ui` lists.
    The file needs no network. A run with --log-dir or --run-dir writes it at its end by itself.
    """
    from frontends.report.page import render, write

    if not runs:
        raise UsageError("`report` needs a run: the directory of its --log-dir or --run-dir, or a detached run's name")
    if out is not None and out.suffix.lower() not in (".html", ".htm") and str(out) != "-":
        raise UsageError(f"--out must end in .html, as the report is HTML. Received: {out}")
    directories = [directory_of(run) for run in runs]
    readers = [_read(directory, name) for directory, name in zip(directories, _names(directories), strict=True)]
    for reader in readers:
        for notice in reader.notices():
            click.echo(f"{reader.directory}: {notice}", err=True)
    page = render(", ".join(reader.name for reader in readers), [reader.as_json() for reader in readers])
    if str(out) == "-":
        sys.stdout.write(page)
        return 0
    file = out or (directories[0] / REPORT if len(directories) == 1 else Path(REPORT))
    try:
        write(page, file)
    except OSError as error:
        raise UserError(f"the report cannot be written: {error}; --out names another file") from None
    click.echo(file)
    return 0


def directory_of(run: str) -> Path:
    """Return the directory of a run's records. Raises UsageError where there are none."""
    from fdt.cli.detach import attached_runs
    from fdt.runs import runs as detached_runs

    path = Path(run)
    if path.is_file() and path.name == FILE:
        return path.parent
    if (path / FILE).is_file():
        return path
    named = [each for each in (*detached_runs(), *attached_runs()) if each.name == run]
    if named:
        directory = Path(named[0].read("logs").get("directory") or named[0].logs)
        if (directory / FILE).is_file():
            return directory
        raise UsageError(f"the run has written no records yet. Received: {run}, {named[0].state()}")
    what = "a directory without" if path.is_dir() else "neither the name of a run nor a directory with"
    raise UsageError(f"RUN must be a run's --log-dir or --run-dir. Received: {run}, {what} {FILE}")


def _read(directory: Path, name: str) -> "RunReader":
    from frontends.report.reader import RunReader

    reader = RunReader(directory, name)
    try:
        reader.update()
    except OSError as error:
        raise UserError(f"the records cannot be read: {error}") from None
    if not reader.data.started:
        raise UserError(f"{directory / FILE} holds no record of a run")
    return reader


def _names(directories: list[Path]) -> list[str]:
    """Return a name for each directory: its last part, or as many parts as make the names differ."""
    resolved = [directory.resolve() for directory in directories]
    for count in range(1, max(len(each.parts) for each in resolved) + 1):
        names = ["/".join(each.parts[-count:]) for each in resolved]
        if len(set(names)) == len(set(resolved)):
            return names
    return [str(each) for each in resolved]
