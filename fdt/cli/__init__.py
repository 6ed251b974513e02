"""Code that both commands share. This module divides a command line between this project and the script.

Options before the script are this project's. Arguments after it are the script's, except -np, --async and --sync, up to
a `--`. `run --run-dir DIR` saves the command line, `run --resume DIR` continues with it.
"""

import contextlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fdt.errors import EXIT_RESUME, UsageError, UserError
from fdt.signals import GRACE_S, Preempted, undisturbed

if TYPE_CHECKING:
    from fdt.rundir import RunDir

WORKERS = "-np"
EVERYWHERE = ("--async", "--sync")
RESUME, RUN_DIR = "--resume", "--run-dir"

DASH_M = "-m"  # "-m package.module" stands for a script wherever a script's path does

_GLUED_MODULE = re.compile(rf"{DASH_M}[\w.]+")  # -mpackage.module, as Python takes it
_GLUED = re.compile(rf"{WORKERS}(\d+)")  # -np4, as mpirun's users write it


def flag(name: str) -> str:
    """Return the option's spelling for the parameter `name`."""
    return "--" + name.replace("_", "-")


@dataclass
class Split:
    """A command line in three parts. `overlooked`: the script's arguments that equal names of our options."""

    ours: list[str] = field(default_factory=list)
    script: str | None = None
    script_args: list[str] = field(default_factory=list)
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
    if _before_script(parts, rest, valued):  # a `--` ended our options
        parts.script_args = rest[::-1]
    else:
        _after_script(parts, rest, {*valued, *flags})
    return parts


def _before_script(parts: Split, rest: list[str], valued: Collection[str]) -> bool:
    """Move arguments up to the script. Return whether a `--` came before it: then all later ones are the script's."""
    while rest:
        argument = rest.pop()
        if argument == "--":
            parts.script = rest.pop() if rest else None
            return True
        if argument == "-" or not argument.startswith("-"):
            parts.script = argument
            return False
        if (argument == DASH_M and rest) or _GLUED_MODULE.fullmatch(argument):
            parts.script = f"{DASH_M} {rest.pop() if argument == DASH_M else argument[2:]}"
            return False
        parts.ours += _unglued(argument)
        if argument in valued and rest:
            parts.ours.append(rest.pop())
    return False


def _after_script(parts: Split, rest: list[str], names: Collection[str]) -> None:
    while rest:
        argument = rest.pop()
        if argument == "--":
            parts.script_args += rest[::-1]
            return
        if argument in EVERYWHERE or _GLUED.fullmatch(argument) or argument.startswith(f"{WORKERS}="):
            parts.ours += _unglued(argument)
        elif argument == WORKERS:
            parts.ours += [argument, *([rest.pop()] if rest else [])]
        else:
            parts.script_args.append(argument)
            name = argument.partition("=")[0]
            if name in names and name not in parts.overlooked:
                parts.overlooked.append(name)


def _unglued(argument: str) -> list[str]:
    glued = _GLUED.fullmatch(argument)
    return [WORKERS, glued[1]] if glued else [argument]


def module_of(script: str) -> str | None:
    """Return the name of the module that `script`, "-m package.module", stands for; None for the path of a script."""
    return script.removeprefix(f"{DASH_M} ") if script.startswith(f"{DASH_M} ") else None


def script_argv(script: str) -> list[str]:
    """Return the script or module as arguments of a command line."""
    name = module_of(script)
    return [script] if name is None else [DASH_M, name]


def file_of(script: str) -> Path:
    """Return the source file of the script or module. Raises UsageError for a module that cannot be run."""
    name = module_of(script)
    return Path(script) if name is None else _located(name)[0]


def folder_of(script: str) -> Path:
    """Return the folder that absolute imports of the script or module start from."""
    name = module_of(script)
    return Path(script).parent if name is None else _located(name)[1]


def _located(name: str) -> tuple[Path, Path]:
    """Return the file of a module, and the folder that holds it or its outermost package; nothing is imported."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise UsageError(f"{DASH_M} starts from the working directory, which was removed") from None
    spec, places = None, [folder, *sys.path]
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(parts[end - 1], places) if all(parts) else None
        if spec is None or (end < len(parts) and not spec.submodule_search_locations):
            parent = "" if end == 1 else f"; {'.'.join(parts[: end - 1])} is there" if spec is None else ""
            hint = f"; did you mean {DASH_M} {name[:-3]}?" if name.endswith(".py") else parent
            raise UsageError(f"no module named {name}, seen from {folder}{hint}")
        places = list(spec.submodule_search_locations or ())
    if spec is not None and spec.submodule_search_locations:
        parts.append("__main__")
        spec = importlib.machinery.PathFinder.find_spec("__main__", list(spec.submodule_search_locations))
        if spec is None:
            raise UsageError(f"{name} is a package without __main__.py, and cannot be run; name one of its modules")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"{DASH_M} needs a module with Python source. Received: {name}")
    file = Path(spec.origin)
    return file, file.parents[len(parts) - 1]


def checked_script(script: str) -> str:
    """Return `script`. Raises UsageError unless it is a file that can be read, or a module that can be run."""
    path = str(file_of(script))
    if os.path.isdir(path):
        raise UsageError(f"the script must be a Python file. Received: the directory {path}")
    if not os.path.exists(path):
        raise UsageError(f"no such script. Received: {path} (in {os.getcwd()})")
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script cannot be read. Received: {path}")
    return script


def modules_below(start: str) -> list[str]:
    """Return the modules and packages in the working directory whose names begin with `start`."""
    import pkgutil

    package = start.rpartition(".")[0]
    found = pkgutil.iter_modules([os.path.join(os.getcwd(), *package.split("."))], f"{package}." if package else "")
    return [module.name for module in found if module.name.startswith(start)]


@dataclass(frozen=True)
class RunRequest:
    """Which engine or server trains, and what is shown and kept. `workers` is None where the user gave no number."""

    engine: str
    workers: int | None = None
    server: str | None = None
    priority: int | None = None
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
    grace_s: float = GRACE_S  # seconds that a preempted run has to save itself
    detach: bool = False
    early: bool = True  # start the engine before the script, not when it first trains
    typed: Sequence[str] = ()  # our own arguments of the command line, to record with the run
    command: Sequence[str] = ()  # the arguments that the user typed; (): the process's command line
    write_report: Callable[[str, Path, bool], None] | None = None  # writes the report: engine, log directory, quiet

    @property
    def typed_command(self) -> list[str]:
        """The command line that the user typed, to record with the run."""
        return list(self.command) or [self.engine, *sys.argv[1:]]


def resumed(parts: Split, engine: str) -> Split:
    """Return `parts`, or with --resume those of the resumed run, whose options are followed by those given now.

    The working directory becomes the resumed run's, because its script names files relative to it.
    """
    directory = value_of(parts.ours, RESUME)
    if directory is None:
        return parts
    if value_of(parts.ours, RUN_DIR) is not None:
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


def kept(request: "RunRequest", script_args: Sequence[str], body: Callable[["RunDir | None"], int]) -> int:
    """Call `body` with the directory of --run-dir or --resume, or None; return its exit code.

    If the run fails and has a checkpoint, print the command that resumes it.
    """
    if request.run_dir is None:
        return body(None)
    from fdt.rundir import RunDir

    if request.resumed:
        directory = RunDir.open(request.run_dir, request.engine)
        _note_changes(request.engine, directory)
    else:
        directory = RunDir.create(request.run_dir, request.engine, request.typed, request.script, script_args)
    code = 1
    try:
        code = body(directory)
        return code
    except Preempted as preempted:
        code = preempted.code
        raise
    finally:
        left = code == EXIT_RESUME or (code != 0 and directory.begun)
        with contextlib.suppress(OSError), undisturbed():
            directory.close(ended_well=code == 0, keep=left)
        if left:
            again = f"{request.engine} run {RESUME} {request.run_dir}"
            print(f"{request.engine}: to continue this run: {again}", file=sys.stderr, flush=True)


def _note_changes(engine: str, directory: "RunDir") -> None:
    """Print a line when the script has changed. Raises UserError for a script that cannot be read."""
    from fdt.rundir import digest_of

    script = directory.arguments.script
    try:
        changed = digest_of(file_of(script)) != directory.arguments.digest
    except OSError as error:
        raise UserError(f"{RESUME} needs the script of the run: {error}") from None
    if changed:
        change = "has changed since the run began; steps that are already trained are not repeated"
        print(f"{engine}: {script} {change}", file=sys.stderr)


def value_of(ours: Sequence[str], name: str) -> str | None:
    """Return the last value of the option `name`, or None."""
    found = None
    for at, argument in enumerate(ours):
        if argument == name and at + 1 < len(ours):
            found = ours[at + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found


def _without(ours: Sequence[str], name: str) -> list[str]:
    kept, rest = [], list(reversed(ours))
    while rest:
        argument = rest.pop()
        if argument == name and rest:
            rest.pop()
        elif not argument.startswith(f"{name}="):
            kept.append(argument)
    return kept
