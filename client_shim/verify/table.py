"""Text output of a comparison: a table, and the verdict in one line."""

import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_shim.verify.comparable import RANDOM
from client_shim.verify.compare import BLUNT, Comparison, Difference, LineResult
from client_shim.verify.records import RecordedRun
from fdt.report import quantity

_RULE_WIDTH = 100  # columns of a terminal
EQUAL, DIFFERS, UNPROVEN = "equal", "different", "not proven"
NO_STEP = (
    "verify saw no training step. It records fit, train_on_batch, GradientTape and tf.function, and not sessions of "
    "TensorFlow 1"
)
UNSTEADY = (
    "step {step} at {where}: an error of {part} of its update would not be found, because two runs of the script alone "
    "differ too much, its floats are too coarse, or the update is too small. Does the script use randomness without a "
    "seed (RandomState(), os.urandom, a date), bfloat16 or float16, or a learning rate near 0, as in a warm-up?{before}"
)
STILL = "no compared step changed a weight that existed before it. Is the learning rate 0, or are more --steps needed?"


@dataclass(frozen=True)
class Verdict:
    """A verdict; `outcome`: EQUAL, DIFFERS or UNPROVEN."""

    outcome: str
    text: str

    @property
    def exit_code(self) -> int:
        """The exit code of `verify`."""
        return 0 if self.outcome == EQUAL else 1


def judge(alone: RecordedRun, shaken: RecordedRun, divided: RecordedRun, compared: Comparison, wanted: int) -> Verdict:
    """Return the verdict on up to `wanted` steps.

    It is UNPROVEN where a wrong run would give the same comparison.
    """
    if not alone.steps:
        return Verdict(UNPROVEN, NO_STEP)
    sharp = [step.resolution for step in compared.steps if step.resolution <= BLUNT]
    trained = [(k, step.resolution) for k, step in enumerate(compared.steps) if step.update.alone]
    blunt = next((k for k, resolution in trained if not resolution <= BLUNT), None)  # it may be NaN
    first = first_beyond(compared)
    if compared.steps and not sharp:
        return Verdict(UNPROVEN, STILL) if blunt is None else _unsteady(compared, blunt, 0)
    if len(shaken.steps) != len(alone.steps):
        return Verdict(
            UNPROVEN,
            f"the script alone took {quantity(len(alone.steps), 'step')}, and {len(shaken.steps)} when run again",
        )
    drawing = next((note for note in divided.notes if note.startswith(RANDOM)), None)
    if first is not None:
        return Verdict(UNPROVEN, f"{first}; {drawing}") if drawing else Verdict(DIFFERS, first)
    if len(divided.steps) != len(alone.steps):
        counts = f"{len(divided.steps)} divided, {len(alone.steps)} alone"
        return Verdict(DIFFERS, f"the number of steps differs: {counts}; {wanted} were asked for")
    if blunt is not None:
        return _unsteady(compared, blunt, blunt if trained[0][0] < blunt else 0)
    seen = percent(max(sharp))
    return Verdict(
        EQUAL, f"{_counted(compared)} are equal to float rounding; an update wrong by {seen} would have been found"
    )


def _unsteady(compared: Comparison, k: int, proven: int) -> Verdict:
    step = compared.steps[k]
    before = f" The steps before it are equal: compare {proven} only" if proven else ""
    part = percent(step.resolution)
    return Verdict(UNPROVEN, UNSTEADY.format(part=part, step=k + 1, where=place(step.where), before=before))


def first_beyond(compared: Comparison) -> str | None:
    """Return where and how much the first step, or printed line, differs by more than noise; None where none does."""
    steps = [k for k, step in enumerate(compared.steps) if step.beyond]
    lines = [line for line in compared.lines if line.beyond]
    if lines and (not steps or lines[0].step < steps[0] + 1):
        line = lines[0]
        return f"after step {line.step} the script prints {line.divided!r}, and {line.alone!r} when run alone"
    if not steps:
        return None
    step = compared.steps[steps[0]]
    return f"step {steps[0] + 1} at {place(step.where)}: {_excess(step.beyond)}"


def _excess(beyond: Sequence[Difference]) -> str:
    """Describe the difference that is largest in relation to its noise."""
    worst = max(beyond, key=lambda each: each.difference / each.noise if each.noise else math.inf)
    size = percent(worst.difference / abs(worst.alone)) if worst.alone else f"{worst.difference:.2g}"
    noise = percent(worst.noise / abs(worst.alone)) if worst.alone else f"{worst.noise:.2g}"
    return f"{worst.what} is off by {size}, and rounding explains {noise}"


def _counted(compared: Comparison) -> str:
    steps, lines = len(compared.steps), len(compared.lines)
    return quantity(steps, "step") + (f" and {quantity(lines, 'printed line')}" if lines else "")


def percent(part: float) -> str:
    """Return `part` of 1 as a percentage of two digits: 0.0024 %."""
    if not math.isfinite(part):
        return "NaN or infinity"
    return f"{100 * part:.0f} %" if part >= 1 else f"{100 * part:.2g} %"


def place(where: str) -> str:
    """Return a file's name without its folders, and the line."""
    return os.path.basename(where)


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
    for line in (*notes, *compared.left_out):
        out.print(Text(f"note: {line}", "yellow"), soft_wrap=not out.is_terminal)
    show_verdict(out, verdict)


def as_json(compared: Comparison, notes: Sequence[str], verdict: Verdict) -> dict[str, Any]:
    """Return what `show` prints; numbers that are not finite are None."""
    steps = [{**asdict(step), "ok": not step.beyond} for step in compared.steps]
    lines = [{**asdict(line), "ok": not line.beyond} for line in compared.lines]
    found = {"steps": steps, "lines": lines, "notes": [*notes, *compared.left_out]}
    return {"outcome": verdict.outcome, "text": verdict.text, **_finite(found)}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_verdict(out: Console, verdict: Verdict) -> None:
    """Print the verdict as one line; wrapped in a terminal only."""
    style = _STYLES.get(verdict.outcome, "bold yellow")
    line = Text(f"{verdict.outcome}: ", style).append(verdict.text, "not bold default")
    out.print(line, soft_wrap=not out.is_terminal)


def _table(out: Console, title: str) -> Table:
    """Return a table of plain columns, with a rule below the headings where a terminal has room for it."""
    ours = box.SIMPLE_HEAVY if out.is_terminal and out.width >= _RULE_WIDTH else None
    return Table(title=title, title_justify="left", title_style="bold", box=ours, pad_edge=False, padding=(0, 1))


def _steps(out: Console, title: str, compared: Comparison) -> Table:
    places = list(dict.fromkeys(place(step.where) for step in compared.steps))
    one = len(places) == 1
    table = _table(out, f"{title}; steps at {places[0]}" if one else title)
    with_loss = any(step.loss for step in compared.steps)
    loss = ["loss", "off by", "noise"] if with_loss else []
    for name in ["step", *([] if one else ["at"]), *loss, "update", "off by", "noise", "weights off by", "noise", ""]:
        wide = name == "weights off by"  # the heading may wrap
        table.add_column(name, justify="left" if name == "at" else "right", no_wrap=not wide, min_width=7 * wide)
    for k, step in enumerate(compared.steps):
        at = [] if one else [place(step.where)]
        numbers = [*(_columns(step.loss, "{:.6g}") if with_loss else []), *_columns(step.update, "{:.3g}")]
        weights = _columns(step.weights, "")[1:]
        table.add_row(str(k + 1), *at, *numbers, *weights, _mark(bool(step.beyond)))
    return table


def _columns(each: Difference | None, form: str) -> list[str | Text]:
    """Return three cells: the value alone, its difference and its noise. `form`: the format of the value."""
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
    return f"largest difference, of {count} variables and logs: {worst.what}, step {step}: {part:.2g} of its noise"


def _lines(out: Console, compared: Comparison) -> Table:
    table = _table(out, "What the script prints")
    for name in ("after step", "alone", "off by", "noise", ""):
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
