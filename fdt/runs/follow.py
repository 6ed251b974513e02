"""A detached run watched: its output as it comes, and on a terminal a line below it that says how training stands."""

import codecs
import sys
import time
from typing import Any, TextIO

from fdt.runs.registry import DetachedRun

POLL_S = 0.1
BLOCK_BYTES = 1 << 16


class Follower:
    """Copies `run`'s output to `out`, the last `lines` of what is there and all that comes (None: all there is)."""

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
        """Copy what has come, after a moment; whether the run is over, and all of it copied."""
        over = self._run.over()  # before the last look: nothing is written behind it
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
        self._file.close()
        if self._line is not None:
            self._line.__exit__(None, None, None)

    def _write(self, text: str) -> None:
        out = sys.stdout if self._line is not None else self._out  # StatusLine has put itself there
        encoding = out.encoding or "utf-8"
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()


def _start_of(text: bytes, lines: int) -> int:
    """Where the last `lines` lines begin; one that has no end yet is one of them."""
    at = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        at = text.rfind(b"\n", 0, max(at, 0))
        if at < 0:
            return 0
    return at + 1 if lines else len(text)
