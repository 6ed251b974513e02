"""Text output of a comparison."""

import shutil
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_shim.verify.compare import Comparison, Difference, LineResult
from client_shim.verify.verdict import DIFFERS, EQUAL, Verdict, place

WIDTH = 110
MOST_LINES = 12  # number of printed lines shown of each kind, equal and different
_STYLES = {EQUAL: "bold green", DIFFERS: "bold red"}


def console() -> Console:
    """Return a console on standard output: colours in a terminal, plain text elsewhere."""
    width = None if sys.stdout.isatty() else max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return Console(width=width, highlight=False, soft_wrap=False)


def show(out: Console, title: str, compared: Comparison, notes: Sequence[str], verdict: Verdict) -> None:
    """Print the steps, the lines the script printed, notes on settings and omissions, and the verdict."""
    if compared.steps:
        out.print(_steps(out, title, compared))
        out.print(_nearest(compared), style="dim")
    if compared.lines:
        out.print(_lines(out, compared))
    for text in (*notes, *compared.left_out):
        out.print(Text(f"note: {text}", "yellow"), soft_wrap=not out.is_terminal)
    show_verdict(out, verdict)


def show_verdict(out: Console, verdict: Verdict) -> None:
    """Print the verdict as one line; wrapped in a terminal only."""
    style = _STYLES.get(verdict.outcome, "bold yellow")
    line = Text(f"{verdict.outcome}: ", style).append(verdict.text, "not bold default")
    out.print(line, soft_wrap=not out.is_terminal)


def _table(out: Console, title: str) -> Table:
    """Return a table with rules in a terminal, plain columns elsewhere."""
    ours = box.SIMPLE_HEAVY if out.is_terminal else None
    return Table(title=title, title_justify="left", title_style="bold", box=ours, pad_edge=False, padding=(0, 1))


def _steps(out: Console, title: str, compared: Comparison) -> Table:
    places = list(dict.fromkeys(place(step.where) for step in compared.steps))
    one = len(places) == 1
    table = _table(out, f"{title}; steps at {places[0]}" if one else title)
    with_loss = any(step.loss for step in compared.steps)
    loss = ["loss", "off by", "noise"] if with_loss else []
    for name in ["step", *([] if one else ["at"]), *loss, "update", "off by", "noise", "weights off by", "noise", ""]:
        table.add_column(name, justify="left" if name == "at" else "right", no_wrap=name != "weights off by")
    for k, step in enumerate(compared.steps):
        at = [] if one else [place(step.where)]
        numbers = [*(_columns(step.loss, "{:.6g}") if with_loss else []), *_columns(step.update, "{:.3g}")]
        weights = _columns(step.weights, "")[1:]
        table.add_row(str(k + 1), *at, *numbers, *weights, _mark(bool(step.beyond)))
    return table


def _columns(each: Difference | None, form: str) -> list[str | Text]:
    """Return value, difference and noise."""
    if each is None:
        return ["-", "", ""]
    style = "red" if each.beyond else "green"
    return [form.format(each.alone), Text(f"{each.difference:.1e}", style), Text(f"{each.noise:.1e}", "dim")]


def _nearest(compared: Comparison) -> str:
    """Return a line on the variable or log that is nearest to its noise, or furthest beyond it."""
    each = [(k + 1, one) for k, step in enumerate(compared.steps) for one in step.others if one.noise]
    if not each:
        return ""
    step, worst = max(each, key=lambda pair: pair[1].difference / pair[1].noise)
    count = len({one.what for _, one in each})
    part = worst.difference / worst.noise
    return f"nearest to its noise, of {count} variables and logs: {worst.what}, step {step}, {part:.2g} of it"


def _lines(out: Console, compared: Comparison) -> Table:
    table = _table(out, "What the script prints")
    for name in ("behind step", "alone", "off by", "noise", ""):
        table.add_column(name, justify="left" if name == "alone" else "right", no_wrap=name != "alone")
    shown = _chosen(compared.lines)
    for line in shown:
        table.add_row(*_line(line))
    if len(shown) < len(compared.lines):
        table.add_row("", f"... {len(compared.lines) - len(shown)} more", "", "", _mark(False))
    return table


def _chosen(listed: Sequence[LineResult]) -> Sequence[LineResult]:
    """Return the first lines that differ and the first that are equal, in order."""
    equal = [line for line in listed if not line.beyond][:MOST_LINES]
    beyond = [line for line in listed if line.beyond][:MOST_LINES]
    return [line for line in listed if line in equal or line in beyond]


def _line(line: LineResult) -> list[str | Text]:
    if line.worst is None:
        return [
            str(line.step),
            f"{line.alone or '(nothing)'}\ndivided: {line.divided or '(nothing)'}",
            "",
            "",
            _mark(True),
        ]
    text = line.alone if not line.beyond else f"{line.alone}\ndivided: {line.divided}"
    return [str(line.step), text, *_columns(line.worst, "")[1:], _mark(line.beyond)]


def _mark(beyond: bool) -> Text:
    return Text("NO", "bold red") if beyond else Text("ok", "green")
