"""Order of the ranks' accesses to files: rank 0 changes one when all other ranks have come to the same line.

Rank 0 changes the real files, other ranks those of their scratch folders (scratch.py), and each reads what is there. It
must be what is there on one machine at that line. Rank 0 starts seconds before the other ranks, so that without an
order they would find a cache or a folder that the script has only just made. When the script trains, its steps keep the
ranks together, and its files are those that it has made itself.
"""

import builtins
import contextlib
import errno
import functools
import inspect
import io
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import wrapt

from client_shim.replica.scratch import MAKES, MOVES, OPENS, REMOVES, SYSTEM, WRITING, writes
from client_shim.replica.steps import called_back, is_main, of_script
from client_shim.script import OUR_FOLDERS
from fdt import compat
from fdt.patches import replace
from fdt.process_group import ReplicaGroup
from fdt.service.blame import LIBRARIES

_CHANGE = "change of a file"  # the collective's name


def own_folders() -> tuple[str, str]:
    """Return rank 0's working directory at the start, and its folder of temporary files."""
    return os.getcwd(), tempfile.gettempdir()


class _FileOrder:
    """Runs a change of a file between the ranks' barriers.

    Args:
        group: The process group of the ranks.
        folders: Rank 0's `own_folders`. Names of temporary files differ between ranks.
        scratch: This rank's scratch folder, which TensorFlow shows in lists of files; "": it has none.
        active: Returns whether changes are ordered: until the script trains, since its steps keep ranks together.
    """

    def __init__(self, group: ReplicaGroup, folders: Sequence[str], scratch: str, active: Callable[[], bool]) -> None:
        self._group, self._scratch, self._active = group, os.path.realpath(scratch) if scratch else "", active
        self._start, self._temporary = folders[0], {folders[1], os.path.realpath(folders[1])}
        self._within = False  # a function that calls others of these

    def of(self, original: Any, *positions: int, writes: Any = None, makes: Any = None) -> Any:
        """Return `original`, a function that changes files, in the order.

        Args:
            original: The function.
            positions: The positions of paths among its arguments.
            writes: Returns whether a call with these arguments writes; None: each does.
            makes: Returns whether it fails where the file exists already; None: none does.
        """
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._within or (writes is not None and not writes(*args, **kwargs)) or not _by_script(kwargs):
                return original(*args, **kwargs)
            given = [args[i] if i < len(args) else kwargs.get(names[i]) for i in positions]
            paths = [path for path in map(self._common, given) if path]
            if not paths or not self._active():
                return original(*args, **kwargs)
            change = functools.partial(original, *args, **kwargs)
            self._within = True
            try:
                if self._group.rank == 0:
                    return self._as_rank_0(change)
                return self._as_another(change, paths[-1] if makes is not None and makes(*args, **kwargs) else "")
            finally:
                self._within = False

        return call

    def _as_rank_0(self, change: Callable[[], Any]) -> Any:
        """Change the file when all ranks are here, and tell them how that ended."""
        self._group.barrier(_CHANGE)
        failed = None
        try:
            return change()
        except OSError as error:
            if error.errno is not None:  # else a library's own
                failed = error.errno, error.strerror, str(error.filename)
            raise
        finally:
            self._group.broadcast(failed, _CHANGE)

    def _as_another(self, change: Callable[[], Any], made: str) -> Any:
        """Change the scratch folder's file before rank 0 changes the real one, which `made` must not exist before."""
        error, done = None, None
        try:
            if made and os.path.lexists(made):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), made)
            done = change()
        except Exception as raised:  # noqa: BLE001 - raised below, when rank 0 has come to the line
            error = raised
        self._group.barrier(_CHANGE)
        failed = self._group.broadcast(None, _CHANGE)
        if error is not None:
            raise error
        if failed is not None:
            if isinstance(done, io.IOBase):
                done.close()
            raise OSError(*failed)
        return done

    def _common(self, path: Any) -> str:
        """Return the path that the script means on all ranks; "" for a library's cache and a temporary file."""
        if not isinstance(path, (str, bytes, os.PathLike)) or path in ("", b""):
            return ""
        found = os.path.abspath(os.fsdecode(path)).removeprefix(self._scratch)
        if found.startswith((*SYSTEM, *LIBRARIES)) or f"{os.sep}." in found:
            return ""
        for folder in self._temporary:
            within = self._start != folder and _below(self._start, folder) and _below(found, self._start)
            if _below(found, folder) and not within:
                return ""
        return found


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _by_script(kwargs: Mapping[str, Any]) -> bool:
    """Return whether the script, or a library that it called, changes a file by its path in the main thread."""
    if not is_main() or any(key.endswith("dir_fd") and value is not None for key, value in kwargs.items()):
        return False
    for caller, _ in traceback.walk_stack(sys._getframe(2)):
        path = caller.f_code.co_filename
        if of_script(path):
            return not called_back(caller)
        if path.startswith(OUR_FOLDERS):
            return False
    return False


@contextlib.contextmanager
def ordered_files(
    group: ReplicaGroup, folders: Sequence[str], scratch: str = "", active: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Within the context, the script's changes of files are in order. Enter it after `diverted`.

    Args:
        group: The process group of the ranks.
        folders: Rank 0's `own_folders`; none: the ranks do not share files, and nothing is ordered.
        scratch: This rank's scratch folder; "": it has none.
        active: Returns whether the ranks are still at the same lines.
    """
    with contextlib.ExitStack() as stack:
        if folders:
            _order_all(stack, _FileOrder(group, folders, scratch, active))
        yield


def _order_all(stack: contextlib.ExitStack, order: _FileOrder) -> None:
    opens = order.of(builtins.open, 0, writes=_opens_to(WRITING), makes=_opens_to("x"))
    for owner, name in OPENS:
        replace(stack, owner, name, opens)
    replace(stack, os, "open", order.of(os.open, 0, writes=_flags(writes), makes=_flags(lambda f: f & os.O_EXCL)))
    for name in MAKES:
        replace(stack, os, name, order.of(getattr(os, name), 0, makes=_always))
    replace(stack, os, "symlink", order.of(os.symlink, 1, makes=_always))
    replace(stack, os, "link", order.of(os.link, 0, 1, makes=_always))
    for owner, name in (*((os, name) for name in MOVES), (shutil, "move")):
        replace(stack, owner, name, order.of(getattr(owner, name), 0, 1))
    for owner, name in (*((os, name) for name in (*REMOVES, "truncate")), (shutil, "rmtree")):
        replace(stack, owner, name, order.of(getattr(owner, name), 0))
    for hook in compat.FILE_FUNCTIONS:
        if hook.writes:
            wrapt.register_post_import_hook(functools.partial(_function, stack, order, hook), hook.module)
    for module, kind in compat.FILE_CLASSES.items():
        wrapt.register_post_import_hook(functools.partial(_opening, stack, order, kind), module)


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _opens_to(letters: Iterable[str], at: int = 1) -> Callable[..., bool]:
    """Return a function of `open`'s arguments, `at` the mode: whether the mode has one of the letters."""
    return lambda *args, **kwargs: bool(
        set(letters).intersection((args[at] if len(args) > at else kwargs.get("mode")) or "r")
    )


def _flags(test: Callable[[int], Any]) -> Callable[..., Any]:
    """Return a function of `os.open`'s arguments: the test of its flags."""
    return lambda *args, **kwargs: test(args[1] if len(args) > 1 else kwargs["flags"])


def _function(stack: contextlib.ExitStack, order: _FileOrder, hook: compat.FileFunction, module: Any) -> None:
    owner = getattr(module, hook.owner) if hook.owner else module
    if hasattr(owner, hook.name):  # not in every version of TensorFlow
        replace(stack, owner, hook.name, order.of(getattr(owner, hook.name), hook.position))


def _opening(stack: contextlib.ExitStack, order: _FileOrder, kind: str, module: Any) -> None:
    cls = getattr(module, kind)
    replace(stack, cls, "__init__", order.of(cls.__init__, 1, writes=_opens_to(WRITING, 2)))  # self is the first
