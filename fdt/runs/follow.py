"""The display of a detached run: its output as it appears, and on a terminal a status line below it."""

import codecs
import sys
import time
from typing import Any, TextIO

from fdt.runs.registry import DetachedRun

POLL_S = 0.1
BLOCK_BYTES = 1 << 16


class Follower:
    """Copies `run`'s output to `out`: the last `lines` lines so far (None: all), and all later output."""

    def __init__(self, run: DetachedRun, out: TextIO, lines: int | None = None) -> None:
        self._run, self._out = run, out
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._file = open(run.output, "rb")  # noqa: SIM115  closed by `close`
        if lines is not None:
            self._file.seek(_start_of(self._file.read(), lines))
        self._line: Any = None
        if out is sys.stdout and out.isatty():
            from fdt.report.progress import StatusLine

            self._line = StatusLine(out).__enter__()

    def follow(self) -> bool:
        """Copy new output, then wait a moment. Return whether the run has ended and all of its output is copied."""
        over = self._run.over()  # checked before the last read, so no later output is missed
        while block := self._file.read(BLOCK_BYTES):
            self._write(self._decoder.decode(block))
        if self._line is not None:
            self._line.show(str(self._run.read("progress").get("line", "")))
        if over:
            self._write(self._decoder.decode(b"", final=True))
            self.close()
        else:
            time.sleep(POLL_S)
        return over

    def close(self) -> None:
        """Close the output file and remove the status line."""
        self._file.close()
        if self._line is not None:
            self._line.__exit__(None, None, None)

    def _write(self, text: str) -> None:
        out = sys.stdout if self._line is not None else self._out  # StatusLine has replaced sys.stdout
        encoding = out.encoding or "utf-8"
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()


def _start_of(text: bytes, lines: int) -> int:
    """Return the offset of the last `lines` lines; a last line without an end counts as one."""
    at = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        at = text.rfind(b"\n", 0, max(at, 0))
        if at < 0:
            return 0
    return at + 1 if lines else len(text)
