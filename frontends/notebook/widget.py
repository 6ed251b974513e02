"""The display of a `fit` in a kernel: a line for each epoch, and a widget that shows the running one."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from fdt.report import JobSummary, Reporter, format_logs
from fdt.report.progress import Plain
from fdt.report.status import Clock, Status
from fdt.rpc.session_pb2 import Event

REDRAW_S = 0.1


def display(adds_steps: bool) -> Reporter:
    """Return the display: with a widget where ipywidgets is installed, otherwise lines alone."""
    try:
        import ipywidgets
    except ImportError:
        return Plain()
    return WidgetBar(ipywidgets, adds_steps)


class WidgetBar(Plain):
    """A bar of the running epoch's steps, with the line that a terminal would show beside it.

    Args:
        widgets: The package ipywidgets.
        adds_steps: Each worker takes steps of its own.
        clock: The time in seconds.
    """

    def __init__(self, widgets: Any, adds_steps: bool, clock: Clock = time.perf_counter) -> None:
        super().__init__(clock)
        self._status, self._ticks, self._drawn = Status(adds_steps, clock), clock, 0.0
        self._bar = widgets.IntProgress(value=0, min=0, max=1, layout=widgets.Layout(width="30%"))
        self._label = widgets.Label()
        self._box = widgets.HBox([self._bar, self._label])

    def job(self, job: JobSummary) -> None:
        from IPython.display import display as show

        super().job(job)
        self._status.job(job)
        self._bar.set_trait("max", max(1, job.steps_per_epoch))
        show(self._box)

    def epoch_begin(self, epoch: int) -> None:
        super().epoch_begin(epoch)
        self._status.begin(epoch)
        self._draw()

    def event(self, event: Event) -> None:
        super().event(event)
        if self._status.add(event) and self._ticks() - self._drawn >= REDRAW_S:
            self._draw()

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        super().epoch_end(epoch, logs)
        self._bar.set_trait("value", self._bar.max)
        self._label.set_trait("value", f"Epoch {self._status.epoch}  {format_logs(logs)}")

    def job_end(self) -> None:
        super().job_end()
        with contextlib.suppress(Exception):  # the kernel's connection may be closed
            self._bar.set_trait("bar_style", "success" if self._bar.value == self._bar.max else "warning")

    def _draw(self) -> None:
        self._drawn = self._ticks()
        self._bar.set_trait("value", min(self._bar.max, self._status.step))
        self._label.set_trait("value", self._status.line().replace("━", "").replace("─", ""))
