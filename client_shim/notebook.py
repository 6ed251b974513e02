"""A notebook as a script: its code cells, one after the other, with magics handled or refused.

Each cell is compiled under a name of its own, such as `train.ipynb, cell 3`, with the cell's own line numbers. So
tracebacks, findings and errors name cell and line. Code cells are counted from 1; the cell's text is in `linecache`,
where Python's tracebacks and TensorFlow's AutoGraph look for it.
"""

import __future__

import ast
import bisect
import contextlib
import functools
import itertools
import json
import linecache
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from fdt.errors import UserError

SUFFIX = ".ipynb"
# Code flags of `from __future__ import ...`, which hold for the later cells, too.
FUTURE = functools.reduce(
    operator.or_,
    (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name != "nested_scopes"),
)
# Magics that mean nothing without a kernel, and those whose statement or cell runs without them.
IGNORED = set("autoreload colors config load_ext matplotlib precision reload_ext tensorboard xmode".split())
TRANSPARENT = ("capture", "hfdt", "nfdt", "time", "timeit")
_MAGIC = re.compile(r"(?P<indent>\s*)(?P<mark>%%|%|!!|!|\?)(?P<name>\w*)(?P<rest>.*)")


@dataclass(frozen=True)
class Cell:
    """A code cell. `name`: how errors call it. `text`: its Python code, with as many lines as the cell has."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The syntax tree. Raises SyntaxError with the cell's name."""
        return ast.parse(self.text, self.name)


def is_notebook(path: str | Path) -> bool:
    """Return whether `path` names a notebook."""
    return str(path).endswith(SUFFIX)


def read(path: str | Path, data: bytes) -> list[Cell]:
    """Return the code cells of a notebook and put their text into `linecache`.

    Args:
        path: The notebook's path, as the cells' names are to have it.
        data: Its content.

    Raises:
        UserError: It is no notebook of format 4, its language is not Python, or a magic has no meaning in a script.
    """
    try:
        notebook = json.loads(data)
        about = notebook.get("metadata", {})
        language = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language", "python")
        found = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"a notebook must be JSON of nbformat 4. Received: {path}; "
            "`jupyter nbconvert --to notebook` converts older ones"
        ) from None
    if language != "python":
        raise UserError(f"a notebook must be Python's. Received: {path}, whose kernel's language is {language}")
    cells = []
    for number, text in enumerate(found, 1):
        name = f"{path}, cell {number}"
        cells.append(Cell(name, without_magics(text, name)))
        linecache.cache[name] = (len(text), None, [f"{line}\n" for line in text.split("\n")], name)
    return cells


def trees(path: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield name and syntax tree of each cell. Raises SyntaxError, OSError or UserError where there is none."""
    return ((Path(cell.name), cell.tree) for cell in read(path, path.read_bytes()))


def compiled(cells: Sequence[Cell], rewrite: Callable[[ast.Module], ast.Module] | None) -> list[CodeType]:
    """Return the code of each cell, to be run in order.

    Args:
        cells: The cells.
        rewrite: Transforms the syntax tree of all cells together, in which no two lines have the same number.

    Raises:
        SyntaxError: A cell is not valid Python; the error has the cell's name.
    """
    starts = list(itertools.accumulate((1 + cell.text.count("\n") for cell in cells), initial=0))
    whole = ast.Module([], [])
    for cell, start in zip(cells, starts, strict=False):
        whole.body += ast.increment_lineno(cell.tree, start).body
    if rewrite is not None:
        whole = rewrite(whole)
    parts: list[ast.Module] = [ast.Module([], []) for _ in cells]
    for statement in whole.body:
        parts[bisect.bisect_left(starts, statement.lineno) - 1].body.append(statement)
    codes, flags = [], 0
    for cell, part, start in zip(cells, parts, starts, strict=False):
        codes.append(compile(_moved(part, -start), cell.name, "exec", flags=flags, dont_inherit=True))
        flags |= codes[-1].co_flags & FUTURE
    return codes


def without_magics(text: str, name: str) -> str:
    """Return the cell's Python code: lines with magics become statements that do the same, or `pass`.

    A line with a magic is one at which Python's parser fails: a `%` within an expression or a string is none.

    Raises:
        UserError: A magic has no meaning in a script.
    """
    lines = text.split("\n")  # as Python counts lines: a string may have other separators
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        lines[first] = _handled(lines[first], f"{name}, line {first + 1}", of_cell=True)
    for _ in range(len(lines)):  # each round removes one magic
        try:
            ast.parse("\n".join(lines))
        except (SyntaxError, ValueError) as error:
            at = (getattr(error, "lineno", 0) or 0) - 1
            if not 0 <= at < len(lines) or not _is_magic(lines[at]):
                break  # the compiler reports the error
            lines[at] = _handled(lines[at], f"{name}, line {at + 1}")
        else:
            break
    return "\n".join(lines)


def _is_magic(line: str) -> bool:
    return bool(re.match(r"\s*(%|!|\?)|[\w.]+\?\??\s*$|[\s\w.,]+=\s*(%|!)", line))


def _handled(line: str, where: str, *, of_cell: bool = False) -> str:
    found = _MAGIC.match(line)
    name = found["name"] if found else ""
    if found and found["mark"] in ("%", "%%"):
        if name in TRANSPARENT:
            runs = name == "timeit" or not of_cell  # a cell's other words are options; those of %%timeit are code
            return found["indent"] + ((runs and _statement(found["rest"])) or "pass")
        if name in IGNORED and not of_cell:
            return f"{found['indent']}pass"
        setting = _setting(name, found["rest"])
        if setting and not of_cell:
            return found["indent"] + setting
    raise UserError(
        f"in a notebook that runs as a script this has no meaning. Received: {line.strip()!r} in {where}; remove it, "
        "or run it in a shell before"
    )


def _statement(rest: str) -> str:
    """Return the statement of `%timeit -n 10 statement`."""
    return re.sub(r"^\s*(-[nrp]\s*\d+\s+|-[tcqov]\s+|--no-raise-error\s+)*", "", rest)


def _setting(name: str, rest: str) -> str:
    """Return the Python code of `%env NAME=VALUE` and of `%cd PATH`; "" for other magics.

    IPython expands `{x}` and `$x` in a magic's line, and gives options of `%cd` a meaning. They are not handled.
    """
    if "$" in rest or "{" in rest:
        return ""
    if name == "cd":
        with contextlib.suppress(ValueError):  # a quotation mark without its second
            (path,) = shlex.split(rest)
            if not path.startswith("-"):
                return f"__import__('os').chdir(__import__('os').path.expanduser({path!r}))"
        return ""
    given = re.fullmatch(r"\s*(\w+)\s*[= ]\s*(.+)", rest)
    return (
        f"__import__('os').environ[{given[1]!r}] = {given[2].strip()!r}" if name in ("env", "set_env") and given else ""
    )


def _moved(tree: ast.Module, by: int) -> ast.Module:
    """Move all lines of `tree`, in which a rewriter may have used a node twice."""
    for node in {id(node): node for node in ast.walk(tree)}.values():
        for attribute in ("lineno", "end_lineno"):
            line: Any = getattr(node, attribute, None)
            if line is not None:
                setattr(node, attribute, line + by)
    return tree
