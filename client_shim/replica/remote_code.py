"""Transfer of the script's own code to ranks on other hosts, and its import there without files.

The script, the modules beside it that its imports name, and all modules of a package are sent. They keep their names on
the other host: `__file__`, `sys.argv` and tracebacks are rank 0's. Data files are not sent.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from client_shim.notebook import is_notebook, read
from fdt.cli import file_of, folder_of, module_of
from fdt.errors import UserError

MOST_BYTES = 64 << 20
Files = Mapping[str, bytes]  # source by absolute path


def folder_shown(script: str) -> Path:
    """Return the absolute folder of the script, or the one that holds a module's outermost package."""
    return Path(os.path.abspath(folder_of(script)))


def collect(script: str) -> Files:
    """Return the script and, recursively, the modules that it imports from its own folder; with -m, its package.

    Raises UserError where they have more than 64 MiB.
    """
    path, shown, module = Path(os.path.abspath(file_of(script))), folder_shown(script), module_of(script)
    # Python imports from the folder of a link's target
    folder = shown if module else Path(os.path.realpath(path)).parent
    found: dict[str, bytes] = {}
    waiting = [path, *(_modules(folder, module.partition(".")[0]) if module else ())]
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        source = _read(file)
        if source is None:
            continue  # running the script reports the error
        found[str(shown / file.relative_to(folder)) if file != path else str(path)] = source
        new = {other for name in _imported(file, source) for other in _modules(folder, name)} - seen
        seen |= new
        waiting += sorted(new)
    if sum(map(len, found.values())) > MOST_BYTES:
        raise UserError(
            f"the script and the modules beside it have more than {MOST_BYTES >> 20} MiB, the most that is sent"
        )
    return found


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _imported(file: Path, source: bytes) -> Iterator[str]:
    """Yield the first part of every imported name.

    Relative imports are left out: they name modules of a package, which is sent in full.
    """
    try:
        parsed = [cell.tree for cell in read(file, source)] if is_notebook(file) else [ast.parse(source)]
    except (SyntaxError, ValueError, UserError):
        return
    for node in (node for tree in parsed for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _modules(folder: Path, name: str) -> Iterator[Path]:
    """Yield the module or all modules of the package of that name; hidden folders and environments are left out."""
    module, package = folder / f"{name}.py", folder / name
    if module.is_file():
        yield module
    for at, folders, files in os.walk(package):
        folders[:] = [f for f in folders if f.isidentifier() and not Path(at, f, "pyvenv.cfg").exists()]
        yield from (Path(at, file) for file in files if file.endswith(".py"))


class RemoteCodeFinder(MetaPathFinder):
    """Import finder that serves modules from `files` as if they were in `folder`."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module among the files; None for other modules."""
        place = os.path.join(self._folder, *fullname.split("."))
        if path is not None and os.path.dirname(place) not in path:
            return None  # it belongs to another package
        package = os.path.join(place, "__init__.py")
        if package in self._files:
            return self._spec(fullname, package, [place])
        if f"{place}.py" in self._files:
            return self._spec(fullname, f"{place}.py", None)
        if not any(file.startswith(place + os.sep) for file in self._files):
            return None
        if found := importlib.machinery.PathFinder.find_spec(fullname, path):
            return found  # a namespace package ranks behind all regular packages of its name
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec

    def _spec(self, fullname: str, file: str, places: list[str] | None) -> importlib.machinery.ModuleSpec | None:
        loader = _Loader(fullname, file, self._files[file])
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=places)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of one module whose source is in memory."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            raise OSError(f"not sent to this host: {path}")
        return self._source

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError("a module that was sent has no modification time and no compiled file")


def unpack(files: Files, folder: str, scratch: Path) -> None:
    """Make `files` visible to this process under their own paths.

    Imports, readers of source and, through the scratch folder (client_shim/replica/scratch.py), `open` see them. Files
    that
    this host has with the same content are left alone.

    Args:
        files: Source by absolute path.
        folder: The absolute folder that the script imports from.
        scratch: The rank's scratch folder.
    """
    new = {path: source for path, source in files.items() if _read(Path(path)) != source}
    for path, source in new.items():
        mine = Path(f"{scratch}{path}")
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_bytes(source)
        with contextlib.suppress(SyntaxError, ValueError):  # importing the module reports the error
            text = importlib.util.decode_source(source)
            linecache.cache[path] = (len(source), None, text.splitlines(keepends=True), path)
    at = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path.insert(at, RemoteCodeFinder(new, folder))
