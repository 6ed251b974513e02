"""Attribution of an error and of a process's current position: to the user's arguments, the script, or this project."""

import faulthandler
import itertools
import os
import re
import site
import sys
import sysconfig
import tempfile
import threading
import traceback
from pathlib import Path
from types import FrameType

from fdt import PACKAGES
from fdt.errors import OTHER_ROWS, REMEDY, NeedsReplica, UserError
from fdt.rpc.session_pb2 import Failed

_ROOTS = {
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")),
    *site.getsitepackages(),  # on Debian, dist-packages
    site.getusersitepackages(),
    *(entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))),
}
# The folders of Python and of pip's packages, by their names and by the paths that these resolve to.
LIBRARIES = tuple(f"{path}{os.sep}" for root in _ROOTS if root for path in {root, str(Path(root).resolve())})
_NOT_SCRIPTS = (*LIBRARIES, *(f"{Path(__file__).parents[2] / package}{os.sep}" for package in PACKAGES))
_GRAPH_ERROR = "Graph execution error:"  # TensorFlow puts this in front of the message
_TRACE_ERROR = "in user code:"  # AutoGraph's message, while a function is traced
_NODE = re.compile(r"^(\(\d+\) [A-Z_]+: *)?(\{\{\w+ [^}]*\}\} ?)?")  # TensorFlow's prefix of the failed node's message
_GENERATED = ("<", os.path.join(tempfile.gettempdir(), "__autograph"))  # files that AutoGraph generates, <string>


def failure(error: Exception) -> Failed:
    """Return the message for the client: one line, and a traceback unless `error` is a UserError."""
    if OTHER_ROWS in str(error):  # TensorFlow raised it, within a pipeline
        error = NeedsReplica(f"{OTHER_ROWS}; {REMEDY}", OTHER_ROWS, trained=True)
    if isinstance(error, UserError):
        return Failed(message=str(error), replica=error.reason if isinstance(error, NeedsReplica) else "")
    message = _message(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, frame in enumerate(frames) if is_scripts(frame)), None)
    summary = traceback.TracebackException.from_exception(error)
    if first is not None:
        del summary.stack[:first]  # keep the frames from the script's first one on
    return Failed(message=message, detail="".join(summary.format()), users_code=first is not None)


def one_line(error: BaseException) -> str:
    """Return `error` and the script's innermost line that led to it: "ValueError: no, at /home/me/train.py:12"."""
    own = [f"{f.f_code.co_filename}:{line}" for f, line in traceback.walk_tb(error.__traceback__) if is_scripts(f)]
    return ", at ".join([_message(error), *own[-1:]])


def _message(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines[:1] == [_GRAPH_ERROR]:  # the cause is the line before the node's name
        lines = list(itertools.takewhile(lambda line: not line.startswith("[["), lines))[-1:]
    name = f"{type(error).__name__}: "
    if lines[:1] == [_TRACE_ERROR]:  # the cause is behind the frames
        lines = [line.removeprefix(name) for line in lines if line.startswith(name)][-1:] or lines
    return f"{name}{_NODE.sub('', lines[0])}" if lines else type(error).__name__


def is_scripts(frame: FrameType) -> bool:
    """Return whether the frame's code belongs to the script: it is neither a library's nor generated."""
    return not frame.f_code.co_filename.startswith((*_GENERATED, *_NOT_SCRIPTS))


def place() -> str:
    """Return the script's own position, in any thread, else the main thread's: "train.py:40 read"."""
    stacks = _stacks()
    for stack in stacks:
        for frame in stack:
            if is_scripts(frame):
                return _named(frame)
    return _named(next((frame for frame in stacks[0] if "/tensorflow/" not in frame.f_code.co_filename), stacks[0][0]))


def dump() -> None:
    """Write all threads' stacks into this process's log."""
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)


def _stacks() -> list[list[FrameType]]:
    """Return the stacks of all threads but this one, innermost frame first; the main thread's is the first."""
    main = threading.main_thread().ident
    found = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
    in_order = sorted(found, key=lambda ident: ident != main)
    return [[frame for frame, _ in traceback.walk_stack(found[ident])] for ident in in_order]


def _named(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
