"""`hfdt.run` and `nfdt.run`: a script is run by the command, in a process of its own, and its records are returned."""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import click

from fdt.errors import CaptureError, ScriptFailed, UsageError, UserError, WorkerError
from frontends.report import FILE
from frontends.settings import names_of

ENDING_S = ((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
NOT_FROM_PYTHON = {"detach": "`{} run --detach` starts a run that outlives its caller"}
ERRORS = {kind.__name__: kind for kind in (UsageError, CaptureError, WorkerError, UserError)}
ERROR = "error.json"


@dataclass(frozen=True)
class RunResult:
    """A run that has ended.

    Attributes:
        exit_code: The script's exit code; 128 and the signal's number where a signal ended the command.
        histories: For each `fit` of the script its metrics by epoch, as Keras's History has them:
            {"loss": [0.9, 0.7], "val_loss": [0.8, 0.7]}.
        records: All records of the run, as --log-dir writes them to records.jsonl; the last is the summary.
    """

    exit_code: int
    histories: Sequence[Mapping[str, Sequence[float]]]
    records: Sequence[Mapping[str, Any]] = field(repr=False)

    @property
    def history(self) -> Mapping[str, Sequence[float]]:
        """The metrics of the last `fit`; empty where the script called none."""
        return self.histories[-1] if self.histories else {}


def run(
    engine: str,
    script: str | os.PathLike[str] | None,
    args: Sequence[object],
    options: Mapping[str, Any],
    *,
    check: bool,
) -> RunResult:
    """Run a script by the command of `engine`; see hfdt.run.

    Args:
        engine: "hfdt" or "nfdt".
        script: The script's path; None with `module` or `resume`.
        args: The script's arguments.
        options: Options of the command `run` by name, np included.
        check: Raise ScriptFailed for an exit code other than 0.
    """
    module = options.get("module")
    if script is not None and (module or options.get("resume")):
        other = "module" if module else "resume"
        raise UsageError(f"{engine}.run takes a script, or {other} instead. Received: {os.fspath(script)} too")
    if isinstance(args, (str, bytes)):
        raise UsageError(f"args must be a list, one item for each argument. Received: {args!r}")
    argv = option_argv(engine, {name: value for name, value in options.items() if name != "module"})
    given = ["-m", str(module)] if module else []
    behind = ["--", *([] if script is None else [os.fspath(script)]), *map(str, args)]
    argv = [engine, "run", *argv, *given, *(behind if script is not None or args else [])]
    with tempfile.TemporaryDirectory(prefix=f"{engine}-records-") as directory:
        code = _waited_for(argv, directory)
        code = code if code >= 0 else 128 - code
        error = Path(directory, ERROR)
        if error.exists():
            failure = json.loads(error.read_text())
            kind = next((ERRORS[name] for name in failure["kinds"] if name in ERRORS), UserError)
            raise kind(failure["message"])
        result = _result(code, Path(directory, FILE))
    if code and check:
        raise ScriptFailed(f"{script or module or 'the script'} ended with exit code {code}", result)
    return result


def option_argv(engine: str, options: Mapping[str, Any], others: Collection[str] = ()) -> list[str]:
    """Return options that are given as keyword arguments as the words of a command line.

    Args:
        engine: "hfdt" or "nfdt".
        options: The options by name.
        others: Further valid names, which may have been meant.

    Raises:
        UsageError: There is no such option.
    """
    command = importlib.import_module(f"{engine}.cli").main.commands["run"]
    params = {name: p for p in command.params if isinstance(p, click.Option) for name in names_of(p)}
    argv = []
    for name, value in options.items():
        key = name.replace("_", "-")
        if name in NOT_FROM_PYTHON and value:
            raise UsageError(f"{name} is an option of the command alone: {NOT_FROM_PYTHON[name].format(engine)}")
        if key not in params:
            close = get_close_matches(name, [*others, *(each.replace("-", "_") for each in params)], 1)
            hint = f"did you mean {close[0]}?" if close else f"`{engine} run --help` lists the options"
            raise UsageError(f"{engine} has no option {name!r}; {hint}")
        argv += _option_argv(params[key], value, name)
    return argv


def _option_argv(param: click.Option, value: Any, name: str) -> list[str]:
    flag = max(param.opts, key=len)
    if value is None or value is False:
        return []
    if value is True and (param.is_flag or getattr(param, "needs_no_value", False)):
        return [flag]
    if value is True or param.is_flag:
        raise UsageError(f"{name} must be {'True or False' if param.is_flag else 'a value'}. Received: {value!r}")
    return [f"{flag}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"]


# -- the process ------------------------------------------------------------------------------------------------------
def _waited_for(argv: Sequence[str], directory: str) -> int:
    """Run the command and return its exit code. If this process is to do something else, it ends the command first."""
    ours = [stream if _is_real(stream, number) else None for number, stream in ((1, sys.stdout), (2, sys.stderr))]
    popen = subprocess.Popen(
        [sys.executable, "-m", "frontends.child", str(os.getpid()), directory, *argv],
        stdin=subprocess.DEVNULL,
        stdout=None if ours[0] else subprocess.PIPE,
        stderr=None if ours[1] else subprocess.PIPE,
        start_new_session=True,  # the terminal's Ctrl-C reaches this process alone, which passes it on
    )
    with _copied(popen.stdout, sys.stdout), _copied(popen.stderr, sys.stderr):
        try:
            return popen.wait()
        except BaseException:
            _end(popen)
            raise


def _end(popen: "subprocess.Popen[bytes]") -> None:
    """End the command, which ends its workers. A second Ctrl-C is impatience: the next signal is sent at once."""
    for number, within_s in ENDING_S:
        popen.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            popen.wait(within_s)
        if popen.poll() is not None:
            return


def _is_real(stream: Any, number: int) -> bool:
    """Return whether what is written to `stream` goes to the file descriptor: not in a notebook."""
    try:
        return bool(stream.fileno() == number)
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        return False


@contextlib.contextmanager
def _copied(source: IO[bytes] | None, out: Any) -> Iterator[None]:
    """Within the context, what a process writes is written to `out`, a stream that is no file."""
    if source is None:
        yield
        return

    def copy() -> None:
        with io.TextIOWrapper(source, errors="replace") as text:
            for line in text:
                out.write(line)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# -- what it leaves ---------------------------------------------------------------------------------------------------
def _result(code: int, file: Path) -> RunResult:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the command ended while it wrote the line
            records.append(json.loads(line))
    fits: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["kind"] == "epoch":
            metrics = fits.setdefault(record["job"], {})
            for name, value in record["logs"].items():
                metrics.setdefault(name, []).append(value)
    return RunResult(code, list(fits.values()), records)
