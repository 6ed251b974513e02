"""The configuration file: hfdt.toml, or [tool.hfdt] of pyproject.toml; how it is found, read and checked."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from fdt.errors import UsageError

FILE, PROJECT = "hfdt.toml", "pyproject.toml"
ENGINES, COMMANDS = ("hfdt", "nfdt"), ("run", "verify", "inspect", "serve", "queue", "simulate")
PROFILES = "profiles"
ROOTS = (".git", ".hg", ".svn")  # what a repository's root holds
_HEADER = r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(#.*)?$"  # compiled where a line is looked for
_KEY = r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*="

Keys = tuple[str, ...]  # the names of tables and a key, outermost first


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file that was read.

    Attributes:
        path: The file.
        text: Its text, for line numbers.
        tables: The tables of this project.
        prefix: The tables that hold them: () in hfdt.toml, ("tool", "hfdt") in pyproject.toml.
    """

    path: Path
    text: str
    tables: Mapping[str, Any]
    prefix: Keys = field(default=())

    @cached_property
    def _lines(self) -> dict[Keys, int]:
        found: dict[Keys, int] = {}
        table: Keys = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := re.match(_HEADER, line):
                table = _parts(header[1])
                found.setdefault(table, number)
            elif key := re.match(_KEY, line):
                found.setdefault((*table, *_parts(key[1])), number)
        return found

    def where(self, keys: Keys) -> str:
        """Return "hfdt.toml:3", the place of a key or table; the file alone where its line is not found."""
        whole = (*self.prefix, *keys)
        line = self._lines.get(whole)
        shown = os.path.relpath(self.path)
        return f"{shown}:{line}" if line else shown

    def table(self, keys: Keys) -> Mapping[str, Any]:
        """Return the table of that name; an empty one where the file has none. Raises UsageError for a value."""
        found: Any = self.tables
        for depth, key in enumerate(keys, 1):
            if key not in found:
                return {}
            found = found[key]
            if not isinstance(found, dict):
                name = f"[{'.'.join((*self.prefix, *keys[:depth]))}]"
                raise UsageError(f"{self.where(keys[:depth])}: {key} must be a table, {name}. Received: {found!r}")
        return dict(found)

    def check(self) -> None:
        """Raise UsageError for a table that no command reads."""
        self._check_tables((), (*COMMANDS, *ENGINES, PROFILES))
        for profile in self.table((PROFILES,)):
            self._check_tables((PROFILES, profile), (*COMMANDS, *ENGINES))
        for engine in ENGINES:
            for around in ((), *((PROFILES, profile) for profile in self.table((PROFILES,)))):
                self._check_tables((*around, engine), COMMANDS)

    def _check_tables(self, keys: Keys, known: tuple[str, ...]) -> None:
        for name, value in self.table(keys).items():
            if name in known:
                self.table((*keys, name))
            else:
                raise UsageError(f"{self.where((*keys, name))}: {self._unknown(keys, name, value, known)}")

    def _unknown(self, keys: Keys, name: str, value: Any, known: tuple[str, ...]) -> str:
        inside = ".".join((*self.prefix, *keys))
        if not isinstance(value, dict):
            table = ".".join(filter(None, (inside, "run")))
            return f"an option stands in the table of its command, such as [{table}]. Received: {name}"
        where = f"[{inside}]" if inside else "this file"
        return f"{where} has no table {name!r}; {nearest(name, known)}"


def nearest(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """Return the hint for an unknown name: the nearest known one, or all of them."""
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}" if known else "there is none"


def find() -> ConfigFile | None:
    """Return the configuration of the working directory, or of the nearest parent of it within its repository.

    Outside of a repository only the working directory is searched: a parent may be writable by others.

    Raises:
        UsageError: A file cannot be read, or two files of one directory hold a configuration.
    """
    for folder in _folders():
        found = [config for config in (_read(folder / FILE, ()), _read(folder / PROJECT, ("tool", "hfdt"))) if config]
        if len(found) > 1:
            raise UsageError(f"{FILE} and [tool.hfdt] of {PROJECT} are both in {folder}: keep one of them")
        if found:
            found[0].check()
            return found[0]
    return None


def _folders() -> Iterator[Path]:
    """Yield the working directory, and its parents up to the root of the repository."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # it was removed
        return
    folders = [folder, *folder.parents]
    roots = [n for n, folder in enumerate(folders) if any(os.path.exists(folder / name) for name in ROOTS)]
    yield from folders[: roots[0] + 1 if roots else 1]


def _read(path: Path, prefix: Keys) -> ConfigFile | None:
    if not os.path.isfile(path):  # False, too, where a directory cannot be searched
        return None
    shown = os.path.relpath(path)
    try:
        text = path.read_text(encoding="utf-8")
        if prefix and prefix[-1] not in text:
            return None  # a project's file with nothing for this project is not parsed
        tables = _loads(text)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise UsageError(f"{shown} is not valid TOML: {error}") from None
    for depth, name in enumerate(prefix, 1):
        tables = tables.get(name)
        if tables is None:
            return None
        if not isinstance(tables, dict):
            raise UsageError(f"{shown}: {'.'.join(prefix[:depth])} must be a table. Received: {tables!r}")
    return ConfigFile(path, text, tables, prefix)


def _loads(text: str) -> Any:
    if sys.version_info >= (3, 11):  # imported here: most runs have no such file
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _parts(dotted: str) -> Keys:
    return tuple(part.strip().strip("\"'") for part in re.split(r"\.(?=(?:[^\"']|\"[^\"]*\"|'[^']*')*$)", dotted))
