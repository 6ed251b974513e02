"""A process's current position in the code, for an engine that asks a slow member; read by another thread."""

import faulthandler
import sys
import threading
from pathlib import Path
from types import FrameType

from fdt.service.blame import is_scripts


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
    return [_frames(found[ident]) for ident in sorted(found, key=lambda ident: ident != main)]


def _frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _named(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
