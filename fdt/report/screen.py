"""The display of a job: a bar, lines or nothing, depending on the script's `verbose` and on the terminal."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fdt.report import JobSummary, Reporter

if TYPE_CHECKING:
    from fdt.rpc.session_pb2 import Event


class Screen(Reporter):
    """Shows progress on stdout, where Keras prints, and notes on stderr, a line each.

    The client prints the output of worker 0 (Output), as if the script had printed it.
    """

    def __init__(self, name: str, *, adds_steps: bool, quiet: bool = False) -> None:
        self._name, self._adds_steps, self._quiet = name, adds_steps, quiet
        self._display: Reporter = _Silent()

    def job(self, job: JobSummary) -> None:
        self._display = self._chosen(0 if self._quiet else job.verbose)
        self._display.job(job)

    def epoch_begin(self, epoch: int) -> None:
        self._display.epoch_begin(epoch)

    def event(self, event: "Event") -> None:
        self._display.event(event)
        if event.WhichOneof("kind") == "failed" and not event.failed.users_code:
            self._show_end_of_log(event.failed.detail)
        elif event.HasField("fault"):
            self.note(event.fault.message)
        elif event.HasField("membership"):
            self.note(event.membership.message)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._display.epoch_end(epoch, logs)

    def job_end(self) -> None:
        self._display.job_end()
        self._display = _Silent()

    def note(self, text: str) -> None:
        if not self._quiet:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._display.close()

    def _show_end_of_log(self, detail: str) -> None:
        """Print the end of a log as evidence; the command prints a one-line error at its end."""
        self._display.job_end()
        for line in detail.splitlines():
            print(f"  | {line}", file=sys.stderr)

    def _chosen(self, verbose: int) -> Reporter:
        if verbose == 0:
            return _Silent()
        from fdt.report.progress import Bar, Plain

        terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        return Bar(self._adds_steps) if verbose == 1 and terminal else Plain()


class _Silent(Reporter):
    """The display for verbose=0."""
