"""Where this process stands, told by a thread that does not train: what an engine asks of a member that is late."""

import faulthandler
import sys
import threading
from pathlib import Path
from types import FrameType

from fdt.service.blame import is_scripts


def place() -> str:
    """ "train.py:40 read": the script's own code, in whichever thread it runs; else where the main thread is."""
    stacks = _stacks()
    for stack in stacks:
        for frame in stack:
            if is_scripts(frame):
                return _named(frame)
    return _named(next((frame for frame in stacks[0] if "/tensorflow/" not in frame.f_code.co_filename), stacks[0][0]))


def dump() -> None:
    """All threads' stacks, into this process's log."""
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)


def _stacks() -> list[list[FrameType]]:
    """Of all threads but this one, innermost frame first; the main thread's is the first."""
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
