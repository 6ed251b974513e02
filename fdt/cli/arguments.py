"""Division of a command line between this project and the script.

Options before the script are this project's. Arguments after it are the script's, except -np, --async and --sync, up to
a `--`.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    verbose: bool = False
    quiet: bool = False
    resumed: bool = False  # the logs in --log-dir are of the run that is resumed
    own_summary: bool = False  # the command prints its own summary
    script: str = ""
    run_dir: Path | None = None  # the value of --run-dir or --resume
    detach: bool = False
    early: bool = True  # start the engine before the script, not when it first trains
    typed: Sequence[str] = ()  # our own arguments of the command line, to record with the run
