"""Whose error it is: the user's arguments, the script's own code, or ours."""

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
_GRAPH_ERROR = "Graph execution error:"  # of TensorFlow's, in front of all else
_NODE = re.compile(r"^(\(\d+\) [A-Z_]+: *)?(\{\{\w+ [^}]*\}\} ?)?")  # what it says in front of what failed
_GENERATED = ("<", os.path.join(tempfile.gettempdir(), "__autograph"))  # AutoGraph's, <string>


def failure(error: Exception) -> Failed:
    """What the client is told of `error`: one line, and a traceback where it was not expected."""
    if isinstance(error, UserError):
        return Failed(message=str(error))
    message = _message(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, frame in enumerate(frames) if is_scripts(frame)), None)
    summary = traceback.TracebackException.from_exception(error)
    if first is not None:
        del summary.stack[:first]  # the user's code called what came after it
    return Failed(message=message, detail="".join(summary.format()), users_code=first is not None)


def one_line(error: BaseException) -> str:
    """ "ValueError: no, at /home/me/train.py:12": `error`, and the last line of the script's own that led to it."""
    own = [f"{f.f_code.co_filename}:{line}" for f, line in traceback.walk_tb(error.__traceback__) if is_scripts(f)]
    return ", at ".join([_message(error), *own[-1:]])


def _message(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines[:1] == [_GRAPH_ERROR]:  # what failed is said behind where it stands in the graph, and in front of the node
        lines = list(itertools.takewhile(lambda line: not line.startswith("[["), lines))[-1:]
    return f"{type(error).__name__}: {_NODE.sub('', lines[0])}" if lines else type(error).__name__


def is_scripts(frame: FrameType) -> bool:
    """Code that came with the script: neither a library's nor generated."""
    return not frame.f_code.co_filename.startswith((*_GENERATED, *_LIBRARIES))
