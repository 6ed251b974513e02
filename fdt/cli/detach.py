"""The runs that a command registers: detached ones (`run --detach`), and attached ones, which are in a terminal.

frontends/attach.py shows and ends detached runs. Attached ones are registered while they last, so that the live page
finds them. Their directories, ~/.local/state/hfdt/attached/train-PID/, hold the files of a detached run (fdt/runs.py),
but no output.
"""

import codecs
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from fdt import runs
from fdt.errors import EXIT_INTERRUPTED, UserError
from fdt.runs import VARIABLE, DetachedRun, ProcessIdentity, create
from fdt.security import is_private

if TYPE_CHECKING:
    from fdt.cli import RunRequest

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
    logs = request.log_dir or run.logs
    run.write("logs", {"directory": os.path.abspath(logs)})
    return replace(request, log_dir=logs), run


def start(request: "RunRequest") -> int:
    """Start this command again as a detached run.

    Its output is shown on stderr until it trains; then its name is printed on stdout. Ctrl-C until then ends the run.

    Returns:
        0 when the run trains, or its exit code when it ends before that.
    """
    command = [sys.executable, "-u", *sys.orig_argv[1:]]
    kept = None if request.run_dir is None else request.run_dir.absolute()
    run = create(request.engine, request.script, command, cwd=_STARTED_IN, run_dir=kept)
    print_note = NotePrinter(request.engine, request.quiet)
    print_note(f"{run.name} starts; its output is in {run.output}")
    supervisor = _keep(run)
    try:
        follower = Follower(run, sys.stderr)
        while not follower.follow():
            if run.begun():
                follower.close()
                click.echo(run.name)
                attach = f"{request.engine} attach"
                print_note(
                    f"trains in the background; to see it: {attach} {run.name}; to end it: {attach} --stop {run.name}"
                )
                return 0
    except KeyboardInterrupt:
        stop(run)
        return EXIT_INTERRUPTED
    supervisor.wait()
    return run.exit_code()


@dataclass(frozen=True)
class NotePrinter:
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
            [sys.executable, "-m", "fdt.runs", str(run.directory)],
            cwd=_STARTED_IN,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


POLL_S = 0.1
BLOCK_BYTES = 1 << 16


class Follower:
    """Copies `run`'s output to `out`: the last `lines` lines so far (None: all), and all later output."""

    def __init__(self, run: DetachedRun, out: TextIO, lines: int | None = None) -> None:
        self._run, self._out = run, out
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._file = open(run.output, "rb")  # noqa: SIM115  closed by `close`
        if lines is not None:
            self._file.seek(start_of(self._file.read(), lines))
        self._line: Any = None
        if out is sys.stdout and out.isatty():
            from fdt.report.progress import StatusLine

            self._line = StatusLine(out).__enter__()

    def follow(self) -> bool:
        """Copy new output, then wait a moment. Return whether the run has ended and all of its output is copied."""
        over = self._run.over()  # checked before the last read, so no later output is missed
        while block := self._file.read(BLOCK_BYTES):
            self._write(self._decoder.decode(block))
        if self._line is not None:
            self._line.show(str(self._run.read("progress").get("line", "")))
        if over:
            self._write(self._decoder.decode(b"", final=True))
            self.close()
        else:
            time.sleep(POLL_S)
        return over

    def close(self) -> None:
        """Close the output file and remove the status line."""
        self._file.close()
        if self._line is not None:
            self._line.__exit__(None, None, None)

    def _write(self, text: str) -> None:
        out = sys.stdout if self._line is not None else self._out  # StatusLine has replaced sys.stdout
        encoding = out.encoding or "utf-8"
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()


def start_of(text: bytes, lines: int) -> int:
    """Return the offset of the last `lines` lines; a last line without an end counts as one."""
    at = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        at = text.rfind(b"\n", 0, max(at, 0))
        if at < 0:
            return 0
    return at + 1 if lines else len(text)


ASK_S, INSIST_S, END_S = 20.0, 5.0, 5.0  # after SIGINT, after SIGTERM, after SIGKILL


def stop(run: DetachedRun) -> None:
    """End the run's client, which ends all its processes; at last by SIGKILL. Returns when the end is recorded."""
    client = _client(run)
    for number, within_s in ((signal.SIGINT, ASK_S), (signal.SIGTERM, INSIST_S), (signal.SIGKILL, END_S)):
        if client is not None:
            client.signal(number)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not run.over():
            time.sleep(POLL_S)


def _client(run: DetachedRun) -> ProcessIdentity | None:
    """Return the run's client; wait for it where the run was started a moment ago."""
    deadline = time.monotonic() + INSIST_S
    while run.client() is None and not run.over() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return run.client()


class AttachedRun(DetachedRun):
    """A run in a terminal, by its directory. The run removes the directory a moment before its process ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client, self._is_local = super().client(), super().is_local()

    def client(self) -> ProcessIdentity | None:
        return self._client

    def is_local(self) -> bool:
        return self._is_local

    def over(self) -> bool:
        """Return whether the run's process has ended. A run on another machine has, once its directory is gone."""
        if self._client is None or not self._is_local:
            return not self.directory.exists()
        return not self._client.alive()


def attached_home() -> Path:
    """Return the directory of this user's attached runs."""
    return runs.home().parent / "attached"


def attached_runs() -> list[AttachedRun]:
    """Return this user's attached runs. Directories of runs that were killed are removed."""
    place = attached_home()
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
        The run; None where it cannot be registered, as with no home directory that can be written.
    """
    if noted is not None:
        noted.write("logs", {"directory": str(logs)})
        yield noted
        return
    try:
        run = AttachedRun(attached_home() / f"{runs.stem(request.script)}-{os.getpid()}")
    except UserError:
        yield None
        return
    try:
        yield run if _created(run, request, logs) else None
    finally:
        shutil.rmtree(run.directory, ignore_errors=True)


def _created(run: AttachedRun, request: "RunRequest", logs: Path) -> bool:
    process = ProcessIdentity.of(os.getpid())
    command = request.typed_command
    try:
        attached_home().mkdir(mode=0o700, parents=True, exist_ok=True)
        if process is None or not is_private(attached_home()):
            return False
        shutil.rmtree(run.directory, ignore_errors=True)  # of an earlier process with this number
        run.directory.mkdir(mode=0o700)
        run.write("logs", {"directory": str(logs)})
        run.write("processes", {"client": asdict(process)})
        run.write("run", runs.described(request.engine, request.script, command, os.getcwd(), request.run_dir))
    except OSError:
        return False
    return True
