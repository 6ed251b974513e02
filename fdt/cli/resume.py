"""The options `run --run-dir DIR` and `run --resume DIR`: the command line of a resumed run, and its messages."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdt.cli.arguments import Split
from fdt.errors import UsageError, UserError

if TYPE_CHECKING:
    from fdt.cli.arguments import RunRequest
    from fdt.rundir import RunDir

RESUME, RUN_DIR = "--resume", "--run-dir"


def resumed(parts: Split, engine: str) -> Split:
    """Return `parts`, or with --resume those of the resumed run, whose options are followed by those given now.

    The working directory becomes the resumed run's, because its script names files relative to it.
    """
    directory = _value(parts.ours, RESUME)
    if directory is None:
        return parts
    if _value(parts.ours, RUN_DIR) is not None:
        raise UsageError(f"{RESUME} saves to the directory of the run. Received: {RUN_DIR} too; leave it out")
    if parts.script is not None:
        raise UsageError(
            f"{RESUME} takes the script and its arguments from the run. Received: {parts.script}; leave it out"
        )
    from fdt.rundir import read_arguments

    absolute = Path(directory).resolve()
    before = read_arguments(absolute, engine)
    try:
        os.chdir(before.folder)
    except OSError as error:
        raise UsageError(f"{RESUME} needs the directory that the run was started in: {error}") from None
    ours = [*_without(before.ours, RUN_DIR), *_without(parts.ours, RESUME), RESUME, str(absolute)]
    return Split(ours, before.script, list(before.words))


def kept(request: "RunRequest", words: Sequence[str], body: Callable[["RunDir | None"], int]) -> int:
    """Call `body` with the directory of --run-dir or --resume, or None; return its exit code.

    If the run fails and has a checkpoint, print the command that resumes it.
    """
    if request.run_dir is None:
        return body(None)
    from fdt.rundir import RunDir

    if request.resumed:
        directory = RunDir.open(request.run_dir, request.engine)
        _tell_of_changes(request.engine, directory)
    else:
        directory = RunDir.create(request.run_dir, request.engine, request.typed, request.script, words)
    code = 1
    try:
        code = body(directory)
        return code
    finally:
        left = code != 0 and directory.begun
        with contextlib.suppress(OSError):
            directory.close(ended_well=code == 0)
        if left:
            again = f"{request.engine} run {RESUME} {request.run_dir}"
            print(f"{request.engine}: to continue this run: {again}", file=sys.stderr, flush=True)


def _tell_of_changes(engine: str, directory: "RunDir") -> None:
    """Print a line when the script has changed. Raises UserError for a script that cannot be read."""
    from fdt.rundir import digest_of

    script = Path(directory.arguments.script)
    try:
        changed = digest_of(script) != directory.arguments.digest
    except OSError as error:
        raise UserError(f"{RESUME} needs the script of the run: {error}") from None
    if changed:
        said = "has changed since the run began; steps that are already trained are not repeated"
        print(f"{engine}: {script} {said}", file=sys.stderr)


def _value(ours: Sequence[str], name: str) -> str | None:
    """Return the last value of the option `name`, or None."""
    found = None
    for at, word in enumerate(ours):
        if word == name and at + 1 < len(ours):
            found = ours[at + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def _without(ours: Sequence[str], name: str) -> list[str]:
    kept, rest = [], list(reversed(ours))
    while rest:
        word = rest.pop()
        if word == name and rest:
            rest.pop()
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return kept
