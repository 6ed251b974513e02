"""Attribution of an error: to the user's arguments, to the script's own code, or to this project."""

import itertools
import os
import re
import site
import sysconfig
import tempfile
import traceback
from pathlib import Path
from types import FrameType

from fdt import PACKAGES
from fdt.errors import UserError
from fdt.rpc.session_pb2 import Failed

_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for path in (
        *{sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")},
        *site.getsitepackages(),  # on Debian, dist-packages
        site.getusersitepackages(),
        *(Path(__file__).parents[2] / package for package in PACKAGES),
    )
)
_GRAPH_ERROR = "Graph execution error:"  # TensorFlow puts this in front of the message
_NODE = re.compile(r"^(\(\d+\) [A-Z_]+: *)?(\{\{\w+ [^}]*\}\} ?)?")  # TensorFlow's prefix of the failed node's message
_GENERATED = ("<", os.path.join(tempfile.gettempdir(), "__autograph"))  # files that AutoGraph generates, <string>


def failure(error: Exception) -> Failed:
    """Return the message for the client: one line, and a traceback unless `error` is a UserError."""
    if isinstance(error, UserError):
        return Failed(message=str(error))
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
    return f"{type(error).__name__}: {_NODE.sub('', lines[0])}" if lines else type(error).__name__


def is_scripts(frame: FrameType) -> bool:
    """Return whether the frame's code belongs to the script: it is neither a library's nor generated."""
    return not frame.f_code.co_filename.startswith((*_GENERATED, *_LIBRARIES))
