"""The parts that both commands share; here the division of a command line between this project and the script.

Options before the script are this project's. Arguments after it are the script's, except -np, --async and --sync, up to
a `--`. `run --run-dir DIR` saves the command line, `run --resume DIR` continues with it.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fdt.errors import UsageError, UserError

if TYPE_CHECKING:
    from fdt.rundir import RunDir

WORKERS = "-np"
EVERYWHERE = ("--async", "--sync")

_GLUED = re.compile(rf"{WORKERS}(\d+)")  # -np4, as mpirun's users write it


def flag(name: str) -> str:
    """Return the option's spelling for the parameter `name`."""
    return "--" + name.replace("_", "-")


@dataclass
class Split:
    """A command line in three parts. `overlooked`: the script's arguments that equal names of our options."""

    ours: list[str] = field(default_factory=list)
    script: str | None = None
    words: list[str] = field(default_factory=list)
    overlooked: list[str] = field(default_factory=list)


def split(argv: Sequence[str], valued: Collection[str], flags: Collection[str]) -> Split:
    """Split `argv` at the script, the first argument that is neither an option nor an option's value.

    Unknown options before the script stay in `ours`, where the parser refuses them.

    Args:
        argv: The arguments.
        valued: This project's options that take a value.
        flags: This project's options that take none.
    """
    parts, rest = Split(), list(reversed(argv))
    ends_options = _before_script(parts, rest, valued)
    if ends_options:
        parts.words = rest[::-1]
    else:
        _after_script(parts, rest, {*valued, *flags})
    return parts


def _before_script(parts: Split, rest: list[str], valued: Collection[str]) -> bool:
    """Move arguments up to the script. Return whether a `--` came before it: then all later ones are the script's."""
    while rest:
        word = rest.pop()
        if word == "--":
            parts.script = rest.pop() if rest else None
            return True
        if word == "-" or not word.startswith("-"):
            parts.script = word
            return False
        parts.ours += _unglued(word)
        if word in valued and rest:
            parts.ours.append(rest.pop())
    return False


def _after_script(parts: Split, rest: list[str], names: Collection[str]) -> None:
    while rest:
        word = rest.pop()
        if word == "--":
            parts.words += rest[::-1]
            return
        if word in EVERYWHERE or _GLUED.fullmatch(word) or word.startswith(f"{WORKERS}="):
            parts.ours += _unglued(word)
        elif word == WORKERS:
            parts.ours += [word, *([rest.pop()] if rest else [])]
        else:
            parts.words.append(word)
            name = word.partition("=")[0]
            if name in names and name not in parts.overlooked:
                parts.overlooked.append(name)


def _unglued(word: str) -> list[str]:
    glued = _GLUED.fullmatch(word)
    return [WORKERS, glued[1]] if glued else [word]


@dataclass(frozen=True)
class RunRequest:
    """Which engine or server trains, and what is shown and kept. `workers` is None where the user gave no number."""

    engine: str
    workers: int | None = None
    server: str | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    log_dir: Path | None = None
    tensorboard: Path | None = None
    timeline: Path | None = None
    verbose: bool = False
    quiet: bool = False
    resumed: bool = False  # the logs in --log-dir are of the run that is resumed
    own_summary: bool = False  # the command prints its own summary
    script: str = ""
    run_dir: Path | None = None  # the value of --run-dir or --resume
    detach: bool = False
    early: bool = True  # start the engine before the script, not when it first trains
    typed: Sequence[str] = ()  # our own arguments of the command line, to record with the run
    write_report: Callable[[str, Path, bool], None] | None = None  # writes the report: engine, log directory, quiet


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
