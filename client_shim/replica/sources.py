"""The source of a script, and of the modules beside it that it imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEPTH = 5  # of imports beside the script


@dataclass(frozen=True)
class Import:
    """What one import statement names. `top`: "numpy" of numpy.linalg; "" where it is relative.

    `files`: those beside the script that it runs. `found`: what it names is among them.
    """

    top: str
    files: tuple[Path, ...]
    found: bool


def sources(script: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The script and, as deep as that goes, the modules beside it that it imports; not what cannot be read."""
    waiting, seen = [(script, 0)], {script.resolve()}
    while waiting:
        path, depth = waiting.pop(0)
        try:
            tree = ast.parse(path.read_text(errors="replace"))
        except (SyntaxError, ValueError, OSError):
            continue  # running it says what is wrong
        yield path, tree
        for file in (file for each in imports(tree, path, script.parent) for file in each.files):
            if depth < _DEPTH and file.resolve() not in seen:
                seen.add(file.resolve())
                waiting.append((file, depth + 1))


def imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Import]:
    """Those of the module at `path`, of a script in `folder`."""
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
    """Where a.b.c may be, and a and a.b, which are run before it."""
    parts = name.split(".") if name else []
    places = [folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [(place.with_suffix(".py"), place / "__init__.py") for place in places] or [(folder / "__init__.py",)]


def _there(*places: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(file for candidates in places for file in candidates if file.is_file())
