"""The source files of a script, and the syntax trees of running code with the values of their names."""

import ast
import builtins
import functools
import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from client_shim.notebook import is_notebook, trees
from fdt.cli import file_of, folder_of, module_of
from fdt.errors import UserError

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


def sources(script: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the script and, recursively, of its modules; skip files that cannot be parsed."""
    first, folder = file_of(script), folder_of(script)
    packages = [file for files in _files(folder, module_of(script) or "") for file in _existing(files)]
    started = dict.fromkeys([first, *(packages if module_of(script) else [])])
    waiting, seen = [(file, 0) for file in started], {file.resolve() for file in started}
    while waiting:
        path, depth = waiting.pop(0)
        for name, tree in _trees(path):
            yield name, tree
            for file in (file for each in imports(tree, path, folder) for file in each.files):
                if depth < _DEPTH and file.resolve() not in seen:
                    seen.add(file.resolve())
                    waiting.append((file, depth + 1))


def _trees(path: Path) -> list[tuple[Path, ast.Module]]:
    """Return the name and the syntax tree of a file, or of each cell of a notebook; nothing where there is none."""
    try:
        if is_notebook(path):
            return list(trees(path))
        return [(path, ast.parse(path.read_text(errors="replace")))]
    except (SyntaxError, ValueError, OSError, UserError):
        return []  # running the script reports the error


def imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Import]:
    """Yield the imports of the module at `path`, which belongs to a script in `folder`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                *around, last = _files(folder, alias.name)
                yield Import(alias.name.partition(".")[0], _existing(*around, last), any(_existing(last)))
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else folder
            module = _files(start, node.module or "")
            inner = [_files(start, f"{node.module or ''}.{alias.name}".strip("."))[-1] for alias in node.names]
            found = any(_existing(module[-1])) or all(_existing(each) for each in inner)
            top = "" if node.level else (node.module or "").partition(".")[0]
            yield Import(top, _existing(*module, *inner), found)


def _files(folder: Path, name: str) -> list[tuple[Path, ...]]:
    """Return candidates for the files of a, a.b and a.b.c, all of which an import of a.b.c runs."""
    parts = name.split(".") if name else []
    places = [folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [(place.with_suffix(".py"), place / "__init__.py") for place in places] or [(folder / "__init__.py",)]


def _existing(*places: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(file for candidates in places for file in candidates if file.is_file())


Loop = ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
ITERATING = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def loops_around(frame: FrameType) -> list[Any]:
    """Return the syntax of the frame's own loops around its current line, innermost first."""
    line, scope = frame.f_lineno, scope_of(parsed(frame.f_code.co_filename), frame.f_code)
    nodes = () if scope is None else own_nodes(scope)
    around = [n for n in nodes if isinstance(n, ITERATING) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    return sorted(around, key=lambda n: (n.lineno, n.col_offset), reverse=True)


def body_for(loop: Loop, line: int) -> list[Any]:
    """Return the code that a batch drawn on `line` is for.

    For `for batch in dataset` that is the loop's whole body. For `next(batches)` it is the body without inner
    loops, which have batches of their own.
    """
    if not isinstance(loop, (ast.For, ast.While)):
        return [loop]
    if isinstance(loop, ast.For) and line <= (loop.iter.end_lineno or loop.lineno):
        return list(loop.body)
    return list(_beside(loop.body))


def _beside(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of `nodes` and of their `if`, `with` and `try` blocks, without loops."""
    for node in nodes:
        if isinstance(node, (ast.If, ast.With, ast.withitem, ast.Try, ast.ExceptHandler)):
            yield from _beside(ast.iter_child_nodes(node))
        elif not isinstance(node, (ast.For, ast.While)):
            yield node


def names_of(frame: FrameType) -> dict[str, Any]:
    """Return the values of all names that the frame's code can read."""
    return {**vars(builtins), **frame.f_globals, **frame.f_locals}


@functools.cache
def parsed(path: str) -> ast.Module:
    """Return the file's syntax tree; an empty one where there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def scope_of(tree: ast.Module, code: CodeType) -> Any:
    """Return the part of `tree` that `code` was compiled from."""
    if code.co_name == "<module>":
        return tree
    comprehension = code.co_name in ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
    for node in ast.walk(tree):
        if comprehension and isinstance(node, ITERATING[2:]) and node.lineno == code.co_firstlineno:
            return ast.Expression(node)
        if isinstance(node, SCOPES) and _first_line(node) == code.co_firstlineno:
            return node
    return None


def _first_line(node: Any) -> int:
    return int(min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]))


def own_nodes(scope: Any) -> Iterator[ast.AST]:
    """Yield the nodes of `scope`, without those of nested functions and classes."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*SCOPES, ast.ClassDef)):
            yield from own_nodes(child)


def last_name(node: ast.AST) -> str:
    """Return `fit` for `model.fit`, `f` for `f`, and "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def resolved(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return the current value of the name or attribute; None where more than a lookup would be needed."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, names)
        try:
            return None if owner is None else getattr(owner, node.attr, None)
        except Exception:  # a property of the script's own raised it
            return None
    return None
