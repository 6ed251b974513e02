"""Verdict on a comparison, in one line."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from client_shim.verify.comparable import RANDOM
from client_shim.verify.compare import BLUNT, Comparison, Difference, StepResult
from client_shim.verify.records import RecordedRun

EQUAL, DIFFERS, UNPROVEN = "equal", "different", "not proven"
NO_STEP = (
    "no step of training was seen: verify follows fit, train_on_batch, GradientTape and tf.function, not sessions of "
    "TensorFlow 1"
)
UNSTEADY = (
    "the script alone does not repeat itself: with weights moved by one unit in the last place, the update of step "
    "{step} at {where} is uncertain by {part} of its size; is something drawn without a seed (RandomState(), "
    "os.urandom, a date)?"
)


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
    sharp = [step for step in compared.steps if step.resolution <= BLUNT]
    first = first_beyond(compared)
    if compared.steps and not sharp:
        return Verdict(UNPROVEN, _unsteady(compared.steps[0]))
    if len(shaken.steps) != len(alone.steps):
        return Verdict(
            UNPROVEN, f"the script alone took {len(alone.steps)} steps, and {len(shaken.steps)} when run again"
        )
    drawing = next((note for note in divided.notes if note.startswith(RANDOM)), None)
    if first is not None:
        return Verdict(UNPROVEN, f"{first}; {drawing}") if drawing else Verdict(DIFFERS, first)
    if len(divided.steps) != len(alone.steps):
        counts = f"{len(divided.steps)} steps divided, {len(alone.steps)} alone"
        return Verdict(DIFFERS, f"the script must take as many steps. Received: {counts}, of {wanted} asked for")
    seen = percent(min(step.resolution for step in sharp))
    return Verdict(
        EQUAL, f"{_counted(compared)} are equal to float rounding; an update wrong by {seen} would have been seen"
    )


def first_beyond(compared: Comparison) -> str | None:
    """Return where and how much the first step, or printed line, differs by more than noise; None where none does."""
    steps = [k for k, step in enumerate(compared.steps) if step.beyond]
    lines = [line for line in compared.lines if line.beyond]
    if lines and (not steps or lines[0].step < steps[0] + 1):
        line = lines[0]
        return f"behind step {line.step} the script prints {line.divided!r}, alone {line.alone!r}"
    if not steps:
        return None
    step = compared.steps[steps[0]]
    return f"step {steps[0] + 1} at {place(step.where)}: {_how_far(step.beyond)}"


def _how_far(beyond: Sequence[Difference]) -> str:
    """Describe the difference that is largest in relation to its noise."""
    worst = max(beyond, key=lambda each: each.difference / each.noise if each.noise else math.inf)
    size = percent(worst.difference / abs(worst.alone)) if worst.alone else f"{worst.difference:.2g}"
    noise = percent(worst.noise / abs(worst.alone)) if worst.alone else f"{worst.noise:.2g}"
    return f"{worst.what} off by {size}, rounding explains {noise}"


def _unsteady(step: StepResult) -> str:
    return UNSTEADY.format(part=percent(step.resolution), step=1, where=place(step.where))


def _counted(compared: Comparison) -> str:
    steps, lines = len(compared.steps), len(compared.lines)
    shown = f" and {lines} printed line{'s' if lines != 1 else ''}" if lines else ""
    return f"{steps} step{'s' if steps != 1 else ''}{shown}"


def percent(part: float) -> str:
    """Return `part` of 1 as a percentage of two digits: 0.0024 %."""
    if not math.isfinite(part):
        return "beyond measure"
    return f"{100 * part:.0f} %" if part >= 1 else f"{100 * part:.2g} %"


def place(where: str) -> str:
    """Return a file's name without its folders, and the line."""
    return os.path.basename(where)
