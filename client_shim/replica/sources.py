"""Source files of a script: the script itself and the modules beside it that it imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEPTH = 5  # depth of imports beside the script


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        top: The first part of its name, "numpy" for numpy.linalg; "" for a relative import.
        files: The files beside the script that the import runs.
        found: Whether the named module is among them.
    """

    top: str
    files: tuple[Path, ...]
    found: bool


def sources(script: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the script and, recursively, of its modules; skip files that cannot be parsed."""
    waiting, seen = [(script, 0)], {script.resolve()}
    while waiting:
        path, depth = waiting.pop(0)
        try:
            tree = ast.parse(path.read_text(errors="replace"))
        except (SyntaxError, ValueError, OSError):
            continue  # running the script reports the error
        yield path, tree
        for file in (file for each in imports(tree, path, script.parent) for file in each.files):
            if depth < _DEPTH and file.resolve() not in seen:
                seen.add(file.resolve())
                waiting.append((file, depth + 1))


def imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Import]:
    """Yield the imports of the module at `path`, which belongs to a script in `folder`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                *around, last = _files(folder, alias.name)
                yield Import(alias.name.partition(".")[0], _there(*around, last), any(_there(last)))
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else folder
            module = _files(start, node.module or "")
            inner = [_files(start, f"{node.module or ''}.{alias.name}".strip("."))[-1] for alias in node.names]
            found = any(_there(module[-1])) or all(_there(each) for each in inner)
            top = "" if node.level else (node.module or "").partition(".")[0]
            yield Import(top, _there(*module, *inner), found)


def _files(folder: Path, name: str) -> list[tuple[Path, ...]]:
    """Return candidates for the files of a, a.b and a.b.c, all of which an import of a.b.c runs."""
    parts = name.split(".") if name else []
    places = [folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [(place.with_suffix(".py"), place / "__init__.py") for place in places] or [(folder / "__init__.py",)]


def _there(*places: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(file for candidates in places for file in candidates if file.is_file())
