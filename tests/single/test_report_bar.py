"""The status line on a terminal: at the end the screen has the script's complete output and the epochs' lines."""

import io
import re
import sys

import pytest

from fdt.report import JobSummary, Screen
from fdt.report.progress import Bar
from fdt.report.status import bar
from fdt.rpc.session_pb2 import EpochEnd, Event, Progress


class Terminal(io.StringIO):
    """Remembers the bytes; `screen` is what a person sees once they are all written."""

    encoding = "utf-8"

    def isatty(self):
        return True

    @property
    def screen(self):
        lines = []
        for line in re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).split("\n"):
            cells = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            lines.append("".join(cells).rstrip())
        return lines


class Clock:
    now = 50.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    screen = Terminal()
    screen.attach = lambda: [
        monkeypatch.setattr(sys, name, screen) for name in ("stdout", "stderr")
    ]  # pytest has its own till then
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def progress(step, **logs):
    return Event(progress=Progress(epoch=0, step=step, samples=64 * step, logs=logs))


def started(terminal, validation=False, steps=10):
    terminal.attach()
    reporter = Bar(adds_steps=False, clock=Clock())
    reporter.job(JobSummary("j", epochs=2, steps_per_epoch=steps, validation=validation))
    reporter.epoch_begin(0)
    return reporter


END = Event(epoch_end=EpochEnd(epoch=0, steps=10, samples=640, seconds=4))


def test_the_line_while_an_epoch_trains(terminal):
    reporter = started(terminal)
    reporter.event(progress(2, loss=1.5))
    reporter.event(progress(5, loss=0.75))
    (line,) = terminal.screen
    assert re.fullmatch(r"Epoch 1/2  ━{10}─{10} 5/10  [\d.]+ samples/s  ETA [\d.]+s  loss: 0\.7500", line), line


def test_the_epochs_final_line_is_all_that_stays(terminal):
    reporter = started(terminal)
    reporter.event(progress(5, loss=0.75))
    reporter.event(END)
    assert terminal.screen == [""]
    reporter.epoch_end(0, {"loss": 0.5, "val_loss": 0.6})
    assert terminal.screen == ["Epoch 1/2 - 10 steps - 4.0s - 160 samples/s - loss: 0.5000 - val_loss: 0.6000", ""]
    assert sys.stdout is terminal


def test_prints_appear_whole_above_the_bar(terminal):
    reporter = started(terminal)
    reporter.event(progress(5, loss=0.75))
    print("one")
    print("two, in", end=" ")
    reporter.event(progress(6, loss=0.70))  # the line is the script's until it ends it
    print("parts", file=sys.stderr)
    reporter.event(progress(7, loss=0.65))
    assert terminal.screen[:2] == ["one", "two, in parts"]
    assert "7/10" in terminal.screen[2]
    print("no newline", end="")
    reporter.event(END)
    reporter.epoch_end(0, {"loss": 0.5})
    assert terminal.screen[2] == "no newline"
    assert terminal.screen[3].startswith("Epoch 1/2 - 10 steps")


def test_between_epochs_the_standard_streams_are_the_scripts_own(terminal):
    reporter = started(terminal)
    assert sys.stdout is not terminal
    reporter.event(END)
    assert (sys.stdout, sys.stderr) == (terminal, terminal)


def test_while_the_script_validates_the_bar_stays_and_says_so(terminal):
    reporter = started(terminal, validation=True)
    reporter.event(END)
    assert terminal.screen == ["Epoch 1/2  ━━━━━━━━━━━━━━━━━━━━ 10/10  validating"]
    reporter.epoch_end(0, {"loss": 0.5})
    assert terminal.screen[0].startswith("Epoch 1/2 - 10 steps")


@pytest.mark.parametrize("way", ["job_end", "close"])
def test_an_epoch_cut_short_leaves_no_bar_and_the_streams_as_they_were(terminal, way):
    reporter = started(terminal)
    reporter.event(progress(5, loss=0.75))
    getattr(reporter, way)()
    assert terminal.screen == [""]
    assert sys.stdout is terminal


def test_a_stream_that_the_script_has_put_there_stays(terminal):
    reporter = started(terminal)
    own = io.StringIO()
    sys.stdout = own
    reporter.job_end()
    assert sys.stdout is own
    assert sys.stderr is terminal


def test_unknown_steps_have_no_bar(terminal):
    started(terminal, steps=0).event(progress(5, loss=0.75))
    assert terminal.screen[0].startswith("Epoch 1/2  step 5  ")


def test_the_line_is_cut_to_the_terminals_width(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    reporter = started(terminal)
    reporter.event(progress(5, loss=0.75))
    assert len(terminal.screen[0]) == 39


def test_no_color_is_heard(terminal, monkeypatch):
    started(terminal).event(progress(5))
    assert "\x1b[32m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.truncate(0)
    started(terminal).event(progress(5))
    assert "\x1b" not in terminal.getvalue()


def test_a_terminal_of_ascii_gets_ascii(terminal, monkeypatch):
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    started(terminal).event(progress(5))
    assert "5/10" in terminal.screen[0]
    assert terminal.getvalue().isascii()


@pytest.mark.parametrize(("verbose", "term", "has_bar"), [(1, "xterm", True), (2, "xterm", False), (1, "dumb", False)])
def test_the_scripts_verbose_and_the_terminal_choose(terminal, monkeypatch, verbose, term, has_bar):
    monkeypatch.setenv("TERM", term)
    terminal.attach()
    screen = Screen("hfdt", adds_steps=False)
    screen.job(JobSummary("j", steps_per_epoch=10, verbose=verbose))
    screen.epoch_begin(0)
    screen.event(progress(5))
    screen.job_end()
    assert ("━" in terminal.getvalue()) == has_bar


@pytest.mark.parametrize(("step", "drawn"), [(0, "─" * 20), (1, "━━" + "─" * 18), (10, "━" * 20), (11, "━" * 20)])
def test_bar(step, drawn):
    assert bar(step, 10) == drawn
