"""The `verify` command and `run --verify`: start, read and compare the three runs of a script."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_shim.verify.plan import ERRORS, PRINTED, RECORDS, VERDICT, RecordingPlan
from fdt.cli import script_argv
from fdt.errors import EXIT_INTERRUPTED, UserError
from fdt.launch import describe, stop_all
from fdt.report import quantity
from fdt.signals import held_back, undisturbed

if TYPE_CHECKING:
    from client_shim.verify.compare import Comparison
    from client_shim.verify.table import Verdict

GRACE_S = 10.0  # time for a run to end its ranks
ALONE, SHAKEN, DIVIDED = "alone", "shaken", "divided"
_FAILED = (1, EXIT_INTERRUPTED)  # exit codes of an exception and of Ctrl-C; the script may choose any other


@dataclass(frozen=True)
class VerifyRequest:
    """The comparison that the user asks for.

    Attributes:
        engine: "hfdt" or "nfdt".
        script: Path of the user's Python file.
        script_args: Arguments of the script.
        options: Options of `run`, as the user gave them.
        workers: The number of workers.
        steps: The number of steps to compare.
        seed: The runs' seed; None: a random one.
        log_dir: The directory that gets the result as VERDICT, if any.
    """

    engine: str
    script: str
    script_args: Sequence[str]
    options: Sequence[str]
    workers: int
    steps: int
    seed: int | None
    log_dir: Path | None = None


def verify(request: VerifyRequest, *, as_json: bool = False) -> int:
    """Compare, print, and return the exit code: 0 where all is equal, 1 where it is not or where nothing is proven."""
    from client_shim.verify import table

    out = table.console()
    compared, verdict, notes = _compared(request)
    if as_json:
        print(json.dumps(_record(request, compared, verdict, notes), allow_nan=False))
        return verdict.exit_code
    title = f"{request.engine} verify {request.script}: alone and on {quantity(request.workers, 'worker')}"
    table.show(out, title, compared, notes, verdict)
    return verdict.exit_code


def verified(request: VerifyRequest) -> str:
    """Compare before a run (`run --verify`). Return a line if equal; raise UserError if different or not proven."""
    _, verdict, _ = _compared(request)
    if verdict.exit_code:
        raise UserError(
            f"--verify {request.steps} ended with the verdict {verdict.outcome!r}: {verdict.text}. "
            f"`{request.engine} verify {request.script}` shows every step"
        )
    return f"verified: {verdict.text}"


def _record(request: VerifyRequest, compared: "Comparison", verdict: "Verdict", notes: Sequence[str]) -> dict[str, Any]:
    """Return the result as values for JSON."""
    from client_shim.verify.table import as_json

    about = {"command": f"{request.engine} verify", "script": request.script, "workers": request.workers}
    return {**about, "time": time.time(), **as_json(compared, notes, verdict)}


def _compared(request: VerifyRequest) -> "tuple[Comparison, Verdict, Sequence[str]]":
    """Return the comparison, the verdict and the recorders' notes. Raises UserError where the script fails alone."""
    from client_shim.verify.compare import compare
    from client_shim.verify.records import read_run
    from client_shim.verify.table import UNPROVEN, Verdict, judge

    with tempfile.TemporaryDirectory(prefix="fdt-verify-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        runs = _Runs(root, request)
        code = runs.alone()
        refused = runs.divided(code) if (root / ALONE / RECORDS).exists() else None
        alone, shaken, divided = (read_run(root / name) for name in (ALONE, SHAKEN, DIVIDED))
        compared = compare(alone, shaken, divided)
        notes = list(dict.fromkeys([*alone.notes, *divided.notes]))
        if refused is not None:
            verdict = Verdict(UNPROVEN, refused)
        else:
            verdict = judge(alone, shaken, divided, compared, request.steps)
        _write(request, compared, verdict, notes)
        return compared, verdict, notes


def _write(request: VerifyRequest, compared: "Comparison", verdict: "Verdict", notes: Sequence[str]) -> None:
    """Write the result to the log directory. Raises UserError where it cannot be written."""
    if request.log_dir is None:
        return
    try:
        request.log_dir.mkdir(parents=True, exist_ok=True)
        (request.log_dir / VERDICT).write_text(json.dumps(_record(request, compared, verdict, notes)))
    except OSError as error:
        raise UserError(f"--log-dir cannot be written: {error}") from None


class _Runs:
    """The processes of one comparison, with their directories below `root`."""

    def __init__(self, root: Path, request: VerifyRequest) -> None:
        self._root, self._request = root, request
        self._seed = secrets.randbits(31) if request.seed is None else request.seed
        for name in (ALONE, SHAKEN, DIVIDED):
            (root / name / "scratch").mkdir(parents=True)
            (root / name / PRINTED).touch()
        (root / "tmp").mkdir()

    def alone(self) -> int:
        """Run the script alone, in two processes at once, and return its exit code. Raises UserError where it fails."""
        argv = [sys.executable, "-m", "client_shim.verify.alone"]
        code = self._run({ALONE: argv, SHAKEN: argv})[0]
        if code in _FAILED or code < 0:
            raise UserError(f"the script failed when run alone: {describe(code)}: {self._last_lines(ALONE)}")
        return code

    def divided(self, expected: int) -> str | None:
        """Run the script divided; return why it cannot be compared, or None where it exits with the code `expected`."""
        request = self._request
        program = [sys.executable, "-m", request.engine, "run", "--no-config", "--quiet", *request.options]
        argv = [*program, "--seed", str(self._seed), *script_argv(request.script), "--", *request.script_args]
        (code,) = self._run({DIVIDED: argv})
        if code == expected:
            return None
        return f"the script ended with {describe(code)} divided and {expected} alone: {self._last_lines(DIVIDED)}"

    def _run(self, commands: Mapping[str, Sequence[str]]) -> list[int]:
        popens: list[subprocess.Popen[bytes]] = []
        try:
            with held_back():  # until all that are started can be ended
                for name, argv in commands.items():
                    popens.append(self._start(name, argv))
            with _status(f"{self._request.script}: running {DIVIDED if DIVIDED in commands else 'alone, twice'}"):
                return [popen.wait() for popen in popens]
        finally:
            with undisturbed():
                stop_all(popens, GRACE_S, signal.SIGTERM)

    def _start(self, name: str, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a run in a session of its own, so that Ctrl-C reaches only this command, which then ends the run."""
        directory, request = self._root / name, self._request
        script_args = tuple(request.script_args)
        plan = RecordingPlan(
            str(self._root), name, request.steps, self._seed, os.getpid(), name == SHAKEN, request.script, script_args
        )
        env = {
            "PYTHONHASHSEED": "0",
            **os.environ,
            **plan.environment(),
            "TMPDIR": str(self._root / "tmp"),
            "MPLBACKEND": "Agg",
        }
        with open(directory / PRINTED, "wb") as out, open(directory / ERRORS, "wb") as errors:
            return subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )

    def _last_lines(self, name: str) -> str:
        """Return the last line of the run's standard error, and print the lines before it."""
        lines = (self._root / name / ERRORS).read_text(errors="replace").strip().splitlines() or ["no message"]
        for line in lines[-12:-1]:
            print(f"  | {line}", file=sys.stderr)
        return lines[-1].removeprefix(f"{self._request.engine}: ").removeprefix("error: ")


def _status(text: str) -> contextlib.AbstractContextManager[object]:
    """Show `text` in the terminal while waiting; show nothing elsewhere."""
    from rich.console import Console

    return Console(stderr=True).status(text) if sys.stderr.isatty() else contextlib.nullcontext()
