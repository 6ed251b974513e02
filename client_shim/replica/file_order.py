"""Order of the ranks' accesses to files: rank 0 changes one when all other ranks have come to the same line.

Rank 0 changes the real files, other ranks those of their scratch folders (scratch.py), and each reads what is there. It
must be what is there on one machine at that line. Rank 0 starts seconds before the other ranks, so that without an
order they would find a cache or a folder that the script has only just made.
"""

import builtins
import contextlib
import functools
import io
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from client_shim.replica.scratch import LINKS, MAKES, MOVES, REMOVES, WRITING, writes
from client_shim.replica.steps import called_back, of_script
from client_shim.script import OUR_FOLDERS
from fdt import compat
from fdt.patches import replace
from fdt.process_group import ReplicaGroup
from fdt.service.blame import LIBRARIES

_SYSTEM = ("/dev/", "/proc/", "/sys/")


class _FileOrder:
    """Runs a change of a file between the ranks' barriers.

    Args:
        group: The process group of the ranks.
        temporary: Rank 0's folder of temporary files, whose names differ between ranks.
        scratch: This rank's scratch folder, which TensorFlow shows in lists of files; "": it has none.
        active: Returns whether the ranks are still at the same lines.
    """

    def __init__(self, group: ReplicaGroup, temporary: str, scratch: str, active: Callable[[], bool]) -> None:
        self._group, self._scratch, self._active = group, os.path.realpath(scratch) if scratch else "", active
        self._temporary = temporary
        self._within = False  # a function that calls others of these

    def of(self, original: Any, position: int, *, awaited: bool = False, writes: Any = None) -> Any:
        """Return `original`, a function that changes files, in the order.

        Args:
            original: The function.
            position: The position of the path among its arguments.
            awaited: Whether other ranks go on only when rank 0 has changed the file: they cannot see that it is gone.
            writes: Returns whether a call with these arguments writes.
        """

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else None
            if (writes is not None and not writes(*args, **kwargs)) or not self._applies(path, kwargs):
                return original(*args, **kwargs)
            self._within = True
            try:
                return self._changed(functools.partial(original, *args, **kwargs), 1 + awaited)
            finally:
                self._within = False

        return call

    def _changed(self, change: Callable[[], Any], barriers: int) -> Any:
        before = 1 if self._group.rank == 0 else 0
        self._wait(before)
        try:
            done = change()
        except Exception:
            self._wait(barriers - before)
            raise
        self._wait(barriers - before)
        return done

    def _wait(self, barriers: int) -> None:
        for _ in range(barriers):
            self._group.barrier("change of a file")

    def _applies(self, path: Any, kwargs: Any) -> bool:
        if self._within or not isinstance(path, (str, bytes, os.PathLike)) or path in ("", b""):
            return False
        if any(key.endswith("dir_fd") and value is not None for key, value in kwargs.items()):
            return False
        return _by_script() and self._active() and self._is_common(os.path.abspath(os.fsdecode(path)))

    def _is_common(self, path: str) -> bool:
        """Return whether the script means the same file on all ranks: no library's cache, and no temporary one."""
        if path.startswith((*_SYSTEM, *LIBRARIES)) or f"{os.sep}." in path:
            return False
        path, own = path.removeprefix(self._scratch), os.getcwd()
        if not _below(path, self._temporary):
            return True
        return own != self._temporary and _below(own, self._temporary) and _below(path, own)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _by_script() -> bool:
    """Return whether the script, or a library that it called, changes a file in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    frame = sys._getframe(3)
    for caller, _ in traceback.walk_stack(frame):
        path = caller.f_code.co_filename
        if of_script(path):
            return not called_back(caller)
        if path.startswith(OUR_FOLDERS):
            return False
    return False


@contextlib.contextmanager
def ordered_files(
    group: ReplicaGroup, temporary: str, scratch: str = "", active: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Within the context, the script's changes of files are in order. Enter it after `diverted`.

    Args:
        group: The process group of the ranks.
        temporary: Rank 0's folder of temporary files.
        scratch: This rank's scratch folder; "": it has none.
        active: Returns whether the ranks are still at the same lines.
    """
    order = _FileOrder(group, temporary, scratch, active)
    with contextlib.ExitStack() as stack:
        opens = order.of(builtins.open, 0, writes=lambda file, mode="r", *_, **__: WRITING.intersection(mode))
        for owner, name in ((builtins, "open"), (io, "open")):
            replace(stack, owner, name, opens)
        replace(stack, os, "open", order.of(os.open, 0, writes=lambda path, flags, *_, **__: writes(flags)))
        for name in (*MAKES, *LINKS, "truncate"):
            replace(stack, os, name, order.of(getattr(os, name), int(name in LINKS)))
        for owner, name in (*((os, name) for name in (*MOVES, *REMOVES)), (shutil, "rmtree")):
            replace(stack, owner, name, order.of(getattr(owner, name), 0, awaited=True))
        for hook in compat.FILE_FUNCTIONS:
            if hook.writes:
                wrapt.register_post_import_hook(functools.partial(_function, stack, order, hook), hook.module)
        for module, kind in compat.FILE_CLASSES.items():
            wrapt.register_post_import_hook(functools.partial(_opening, stack, order, kind), module)
        yield


def _function(stack: contextlib.ExitStack, order: _FileOrder, hook: compat.FileFunction, module: Any) -> None:
    owner = getattr(module, hook.owner) if hook.owner else module
    if hasattr(owner, hook.name):  # not in every version of TensorFlow
        gone = hook.name.startswith(("delete", "rename"))
        replace(stack, owner, hook.name, order.of(getattr(owner, hook.name), hook.position, awaited=gone))


def _opening(stack: contextlib.ExitStack, order: _FileOrder, kind: str, module: Any) -> None:
    cls = getattr(module, kind)
    writing = lambda self, name, mode="r", *_, **__: WRITING.intersection(mode or "r")  # noqa: E731
    replace(stack, cls, "__init__", order.of(cls.__init__, 1, writes=writing))
