"""The display of a detached run, and its end: by SIGINT, then SIGTERM, then SIGKILL."""

import codecs
import signal
import sys
import time
from typing import Any, TextIO

from fdt.runs.registry import DetachedRun, ProcessIdentity

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


ASK_S, INSIST_S, END_S = 20.0, 5.0, 5.0  # after SIGINT, after SIGTERM, after SIGKILL


def stop(run: DetachedRun) -> None:
    """End the run's client, which ends all its processes; at last by SIGKILL. Returns when the end is recorded."""
    client = _client(run)
    for number, within_s in ((signal.SIGINT, ASK_S), (signal.SIGTERM, INSIST_S), (signal.SIGKILL, END_S)):
        if client is not None:
            client.signal(number)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not run.over():
            time.sleep(POLL_S)


def _client(run: DetachedRun) -> ProcessIdentity | None:
    """Return the run's client; wait for it where the run was started a moment ago."""
    deadline = time.monotonic() + INSIST_S
    while run.client() is None and not run.over() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return run.client()
