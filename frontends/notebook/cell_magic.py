"""The cell magics `%%hfdt` and `%%nfdt`: a cell as the script of `hfdt run`, with the options of `hfdt run`."""

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from client_shim.replica.detection import detect_capture, with_own_updates
from client_shim.script import ScriptError, run_instead, without_our_frames
from fdt.cli import flag
from fdt.cli.program import COMMAND
from fdt.ending import ended_by_signals
from fdt.environment import silence_import
from fdt.errors import EXIT_INTERRUPTED, NeedsReplica, UsageError, UserError
from fdt.patches import replace
from fdt.report import Screen
from fdt.signals import Ended
from frontends.fitting import alone
from frontends.notebook import widget

# Options that start the command again in another process, or that continue a run, for which a kernel has no script.
NOT_IN_CELLS = ("run_dir", "resume", "detach", "verify")
_TRAINING = threading.Lock()


def register(shell: Any, program: click.Group) -> None:
    """Add the cell magic of `program`, "hfdt" or "nfdt", to an IPython shell."""

    def magic(line: str, cell: str) -> None:
        __tracebackhide__ = True
        train_cell(shell, program, line, cell)

    shell.register_magic_function(magic, "cell", program.name)
    silence_import()  # of TensorFlow, where the extension is loaded before it


def train_cell(shell: Any, program: click.Group, line: str, cell: str) -> None:
    """Run `cell` in the shell's namespace and train each `fit` of it on workers.

    Args:
        shell: The IPython shell.
        program: The command group whose `run` has the options.
        line: The options.
        cell: The cell's text, without the magic.

    Raises:
        BaseException: The cell's own error; the shell shows it as that of a cell without the magic.
        UserError: The cell cannot be trained; the shell shows it as one line.
    """
    __tracebackhide__ = True
    above = "" if cell.lstrip().startswith("%%") else f"# %%{program.name} {line}".rstrip() + "\n"
    running = _RunningCell(shell, above + cell)  # so that lines count from the magic's
    try:
        # Another cell may train around this one, or in another thread.
        with alone(_TRAINING, "a cell trains already, and `fit` is patched for it: leave this magic out"):
            _run(program, line, shell.transform_cell(cell), running)
    except (UserError, click.ClickException) as error:
        running.error = error
    except KeyboardInterrupt as error:
        running.error = running.error or error
    if isinstance(running.error, Ended):  # SIGTERM: the workers have ended, and now the kernel does
        signal.raise_signal(running.error.number)
    if running.error is not None:
        raise _shown(shell, running.error, str(program.name)) from None


class _RunningCell:
    """A cell that runs in place of a script. `error`: what it raised."""

    def __init__(self, shell: Any, cell: str) -> None:
        self._shell, self._cell, self._stderr = shell, cell, sys.stderr
        self.error: BaseException | None = None

    def __call__(self) -> int:
        """Run the cell; return the exit code of a script that ends so."""
        with contextlib.ExitStack() as stack:
            for method in ("showtraceback", "showsyntaxerror"):
                replace(stack, self._shell, method, lambda *_, **__: None)  # the outer cell shows the error
            replace(stack, self._shell, "execution_count", self._shell.execution_count - 1)  # the outer cell's number
            stack.enter_context(contextlib.redirect_stderr(self._stderr))
            done = self._shell.run_cell(self._cell, store_history=False)
        self.error = done.error_before_exec or done.error_in_exec
        if isinstance(self.error, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        return 0 if self.error is None else 1


def _run(program: click.Group, line: str, code: str, running: _RunningCell) -> None:
    """Run the command `run` of `program`, whose script is `running`. `code`: the cell's Python code."""
    command, parent = program.commands["run"], click.Context(program, info_name=program.name)
    with tempfile.TemporaryDirectory(prefix="fdt-cell-") as folder, contextlib.ExitStack() as stack:
        script = Path(folder) / "cell.py"  # is read for what it trains, and not run
        script.write_text(code, encoding="utf-8")
        try:
            context = command.make_context("run", [*_argv(line), "--", str(script)], parent=parent)
        except click.exceptions.Exit:  # --help
            return
        _check(str(program.name), context.params, str(script))
        context.meta[COMMAND] = [f"%%{program.name}", *_argv(line)]
        replace(stack, Screen, "display", staticmethod(widget.display))
        stack.enter_context(run_instead(str(script), running))
        stack.enter_context(_signals())
        stack.enter_context(contextlib.redirect_stderr(sys.stdout))  # the summary is no error
        with context:
            command.invoke(context)


def _argv(line: str) -> Sequence[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"the options cannot be read: {error}. Received: {line}") from None


def _check(name: str, given: dict[str, Any], script: str) -> None:
    """Raise UsageError for options that a cell cannot have, UserError for a cell that has its own training loop."""
    if given["script"] != script:
        raise UsageError(f"%%{name} takes options, and the cell is its script. Received: {given['script']}")
    for option in NOT_IN_CELLS:
        if given.get(option):
            raise UsageError(f"{flag(option)} is not for cells; use `{name} run notebook.ipynb`")
    if given["capture"] == "replica":
        raise _own_loop(name, "--capture replica")
    if given["capture"] != "extract":
        found = with_own_updates(detect_capture(script), divides=True).findings
        own = next((each for each in found if each.capture == "replica"), None)
        if own is not None:
            raise _own_loop(name, f"line {own.line + 1} of the cell, {own.why}")


def _own_loop(name: str, what: str) -> UserError:
    return UserError(
        f"training outside fit needs ranks that all run the script, and a kernel cannot be one ({what}): "
        f"use `{name} run notebook.ipynb`"
    )


def _shown(shell: Any, error: BaseException, name: str) -> BaseException:
    """Return `error`, which the shell will show without this project's frames, or as one line."""
    without_our_frames(error)
    if isinstance(error, NeedsReplica):
        error = _own_loop(name, _cells_named(shell, error.reason))
    lines = _lines(shell, error, name)
    if isinstance(error, SyntaxError):  # the shell would show the frames of the magic
        error = type("SyntaxError", (UserError,), {})(str(error))
    with contextlib.suppress(AttributeError):  # an error with slots
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    return error


def _lines(shell: Any, error: BaseException, name: str) -> list[str]:
    if isinstance(error, click.ClickException):
        return [f"{name}: error: {error.format_message()}"]
    if isinstance(error, UserError):
        return [f"{name}: error: {_cells_named(shell, ' '.join(str(error).split()))}"]
    if isinstance(error, ScriptError):
        return str(error).rstrip().split("\n")
    trace = error.__traceback__
    while trace is not None and f"{os.sep}IPython{os.sep}" in trace.tb_frame.f_code.co_filename:  # they run the cell
        trace = trace.tb_next
    table = shell.SyntaxTB if isinstance(error, SyntaxError) else shell.InteractiveTB
    found: list[str] = table.structured_traceback(type(error), error, [] if table is shell.SyntaxTB else trace)
    return found


def _cells_named(shell: Any, text: str) -> str:
    """Return `text` in which the kernel's names of cells, such as /tmp/ipykernel_1/2.py:3, are In[1], line 3."""

    def named(found: re.Match[str]) -> str:
        label = shell.compile.format_code_name(found[1])
        return f"{' '.join(label)}, line {found[2]}" if label else found[0]

    return re.sub(r"(\S+?):(\d+)", named, text)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Within the context, SIGTERM ends the workers before the kernel. Only the main thread may handle signals."""
    main = threading.current_thread() is threading.main_thread()
    with ended_by_signals() if main else contextlib.nullcontext():
        yield
