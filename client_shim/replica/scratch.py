"""Scratch folder of a rank other than 0: its writes go there, and it reads back there what it wrote.

Python's and TensorFlow's functions on files map their paths. A path to write to becomes one below the scratch folder,
at the same place as below the root. A path to read from does so once it has been written. The script sees its own
names.
"""

import builtins
import bz2
import contextlib
import functools
import inspect
import io
import os
import shutil
import tarfile
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import wrapt

from client_shim.replica.entries import Entries, scandir
from fdt import compat
from fdt.patches import replace

WRITING = frozenset("wax+")  # letters of a mode
SYSTEM = ("/dev/", "/proc/", "/sys/")
# Name in `os`: its path arguments, which come first.
_PATH = ("path",)
MAKES = {"mkdir": _PATH}
MOVES = {"rename": ("src", "dst"), "replace": ("src", "dst")}
_CHANGES = {**MOVES, "link": ("src", "dst"), "chmod": _PATH, "utime": _PATH, "truncate": _PATH}
_READS = {"stat": _PATH, "lstat": _PATH, "access": _PATH, "readlink": _PATH}
_ENTERS = {"chdir": _PATH}
REMOVES = ("remove", "unlink", "rmdir")
# `open` and the names under which modules have kept it.
OPENS = ((builtins, "open"), (io, "open"), (tokenize, "_builtin_open"), (bz2, "_builtin_open"), (tarfile, "bltn_open"))


class Scratch:
    """Maps paths to a rank's scratch folder.

    Args:
        folder: The scratch folder.
        ours: The directory of the process group, whose paths are not mapped.
    """

    def __init__(self, folder: Path, ours: Path) -> None:
        self._folder = os.path.realpath(folder)  # resolved before `os` is patched
        self._real = self._folder + os.sep, os.path.abspath(ours) + os.sep, *SYSTEM
        self._within = False  # the working directory is below the scratch folder

    def written(self, path: Any) -> Any:
        """Return where `path` is to be written; make its parent folder if the real one exists."""
        if not _is_path(path):
            return path
        real = os.path.abspath(os.fsdecode(path))
        if real.startswith(self._real) or real == self._folder:
            return path
        mine = self._folder + real
        if _isdir(os.path.dirname(real)):
            _makedirs(os.path.dirname(mine))
        return mine

    def read(self, path: Any) -> Any:
        """Return where `path` is to be read: this rank's file if it wrote one, else the real file."""
        if not _is_path(path):
            return path
        real = os.path.abspath(os.fsdecode(path))
        mine = self._folder + real
        # a checkpoint's name is only a prefix of its files
        if _exists(mine) or _exists(f"{mine}.index"):
            return mine
        return real if self._within else path

    def changed(self, path: Any) -> Any:
        """Return where a file is to be changed or moved; copy the real file first if this rank has none.

        A folder is not copied: what it holds is read in the real one, where rank 0 moves it.
        """
        mine = self.written(path)
        if mine is not path and not _exists(mine):
            if _isdir(os.fsdecode(path)):
                _makedirs(mine)
            else:
                _copy(_builtin_open, path, mine)
        return mine

    def scan(self, path: Any = ".") -> Any:
        """Return the entries of the real folder and of this rank's, as os.scandir does."""
        mine = self.read(path)
        if mine is path or self._within or not _isdir(os.fsdecode(path)):
            return scandir(mine)
        return Entries(mine, path)

    def list(self, path: Any = ".") -> list[Any]:
        """Return the names of these entries; of a path that is not local, what is there."""
        with self.scan(path) as entries:
            return [entry.name for entry in entries]

    def entered(self, path: Any) -> Any:
        """Return the new working directory: the real one, or this rank's where rank 0 has not made the real one yet."""
        if not _is_path(path):
            return path
        real = os.path.abspath(os.fsdecode(path))
        self._within = not _isdir(real) and _isdir(self._folder + real)
        return self._folder + real if self._within else real

    def getcwd(self) -> str:
        """Return the working directory by the script's name for it."""
        return _getcwd().removeprefix(self._folder) if self._within else _getcwd()


# the originals, saved before they are patched
_lstat, _stat, _mkdir, _getcwd, _builtin_open = os.lstat, os.stat, os.mkdir, os.getcwd, builtins.open


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _isdir(path: str) -> bool:
    try:
        return S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _makedirs(path: str) -> None:
    if not _exists(path):
        _makedirs(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            _mkdir(path)


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike)) and path not in ("", b"") and not _thread.real


class _Thread(threading.local):
    real = False


_thread = _Thread()


@contextlib.contextmanager
def real_paths() -> Iterator[None]:
    """Within the context, this thread's paths are not mapped, so that it can remove leftovers at the end of the run."""
    _thread.real = True
    try:
        yield
    finally:
        _thread.real = False


@contextlib.contextmanager
def diverted(folder: Path, ours: Path) -> Iterator[None]:
    """Within, this process writes below `folder`, except for paths in `ours`, the process group's directory."""
    scratch = Scratch(folder, ours)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        # AutoGraph writes source files to tempdir, and Python itself opens them
        tempfile.tempdir = os.path.join(folder, ".tmp")  # hidden: its names differ between ranks (file_order.py)
        os.makedirs(tempfile.tempdir, exist_ok=True)
        opens = functools.partial(_open, scratch, builtins.open)
        for owner, name in OPENS:
            replace(stack, owner, name, opens)
        replace(stack, os, "open", functools.partial(_os_open, scratch, os.open))
        replace(stack, os, "getcwd", scratch.getcwd)
        maps = (
            (MAKES, scratch.written),
            (_CHANGES, scratch.changed),
            (_READS, scratch.read),
            (_ENTERS, scratch.entered),
        )
        for names, mapping in maps:
            for name, paths in names.items():
                replace(stack, os, name, _mapped(getattr(os, name), mapping, dict(enumerate(paths))))
        replace(stack, os, "symlink", _mapped(os.symlink, scratch.written, {1: "dst"}))  # its source is relative to it
        replace(stack, os, "listdir", functools.partial(_listdir, scratch, os.listdir))
        replace(stack, os, "scandir", scratch.scan)
        for owner, name in (*((os, name) for name in REMOVES), (shutil, "rmtree")):
            replace(stack, owner, name, _removing(scratch, getattr(owner, name)))
        for hook in compat.FILE_FUNCTIONS:
            wrapt.register_post_import_hook(functools.partial(_patch, stack, hook, scratch), hook.module)
        for module, kind in compat.FILE_CLASSES.items():
            wrapt.register_post_import_hook(functools.partial(_patch_opening, stack, scratch, kind), module)
        yield


def _open(scratch: Scratch, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if not WRITING.intersection(mode):
        return original(scratch.read(file), mode, *args, **kwargs)
    mine = scratch.written(file)
    if mine is not file and ("a" in mode or "+" in mode) and "w" not in mode:
        _copy(original, file, mine)
    return original(mine, mode, *args, **kwargs)


def _os_open(scratch: Scratch, original: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
    if kwargs.get("dir_fd") is None:
        mapping = scratch.read if not writes(flags) else scratch.written if flags & os.O_TRUNC else scratch.changed
        path = mapping(path)
    descriptor: int = original(path, flags, *args, **kwargs)
    return descriptor


def writes(flags: int) -> bool:
    """Return whether os.open with these flags opens a file for writing."""
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _copy(opening: Any, real: Any, mine: Any) -> None:
    """Copy the real file, so that appending and updating continue from its content."""
    if not _exists(mine):
        with contextlib.suppress(OSError), opening(real, "rb") as source, opening(mine, "wb") as target:
            target.write(source.read())


def _removing(scratch: Scratch, original: Any) -> Any:
    """Return a function that removes this rank's copy, if there is one; only rank 0 removes the real file."""

    @functools.wraps(original)
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None or not _is_path(path):
            return original(path, *args, **kwargs)
        mine = scratch.written(path)
        if mine is not path and not _exists(mine) and _exists(os.fsdecode(path)):
            return None
        return original(mine, *args, **kwargs)

    return remove


def _mapped(original: Any, mapping: Callable[[Any], Any], paths: Mapping[int, str]) -> Any:
    """Return `original` with its path arguments mapped. `paths`: their names by position."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(key.endswith("dir_fd") and value is not None for key, value in kwargs.items()):
            return original(*args, **kwargs)
        args = tuple(_each(mapping, a) if i in paths else a for i, a in enumerate(args))
        kwargs = {key: _each(mapping, value) if key in paths.values() else value for key, value in kwargs.items()}
        return original(*args, **kwargs)

    return call


def _each(mapping: Callable[[Any], Any], paths: Any) -> Any:
    """Map one path, a list of them, or an eager tensor of them."""
    if isinstance(paths, (list, tuple)):
        return [_each(mapping, path) for path in paths]
    if hasattr(paths, "numpy") and hasattr(paths, "dtype"):
        return _each(mapping, paths.numpy().tolist() if paths.shape.rank else paths.numpy())
    return mapping(paths)


def _listdir(scratch: Scratch, original: Any, path: Any = ".") -> Any:
    return scratch.list(path) if _is_path(path) and _isdir(os.fsdecode(path)) else original(scratch.read(path))


def _patch(stack: contextlib.ExitStack, hook: compat.FileFunction, scratch: Scratch, module: Any) -> None:
    owner = getattr(module, hook.owner) if hook.owner else module
    if not hasattr(owner, hook.name):  # not in every version of TensorFlow
        return
    original = getattr(owner, hook.name)
    if hook.name.startswith("delete"):
        patched = _removing(scratch, original)
    elif hook.name.startswith("list"):
        patched = functools.partial(_listdir, scratch, original)
    else:
        moves = hook.name.startswith("rename") and hook.position == 0
        mapping = scratch.changed if moves else scratch.written if hook.writes else scratch.read
        patched = _mapped(
            original, mapping, {hook.position: list(inspect.signature(original).parameters)[hook.position]}
        )
    replace(stack, owner, hook.name, patched)


def _patch_opening(stack: contextlib.ExitStack, scratch: Scratch, kind: str, module: Any) -> None:
    cls = getattr(module, kind)
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        writes = WRITING.intersection(mode or "r")
        mapping = scratch.read if not writes else scratch.written if "w" in mode or "x" in mode else scratch.changed
        original(self, mapping(name), mode, *args, **kwargs)

    replace(stack, cls, "__init__", init)
