"""Options of `hfdt run` about ranks that fail."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fdt.cli.options import FAULTS, Duration, apply
from fdt.cli.program import option
from fdt.errors import UsageError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Commits(click.ParamType[int]):
    """The type of --commit-every: a number of steps as in 200steps, or 0 for 1epoch."""

    name = "200steps|1epoch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if match := re.fullmatch(r"([1-9]\d*) ?steps?", value):
            return int(match[1])
        if re.fullmatch(r"(1 ?)?epoch", value):
            return 0
        raise UsageError(f"--commit-every must be such as 200steps, or 1epoch. Received: {value}")


def rank_fault_options(function: Decorated) -> Decorated:
    """Add --commit-every, --stall-timeout and --on-nan."""
    commits = "How often the state is kept that --restarts and --resume go back to.  [default: 1epoch]"
    stalls = (
        "A rank that keeps the others waiting so long counts as lost; half of it before, a line says where it is.  "
        "[default: a line after 60s, and no end]"
    )
    nan = (
        "A gradient with NaN or infinity ends the run with its worker and step, or the step is left out.  "
        "[default: neither, as Keras alone]"
    )
    add = [
        option(FAULTS, "--commit-every", type=Commits(), metavar=Commits.name, help=commits),
        option(FAULTS, "--stall-timeout", type=Duration(), metavar="120s", help=stalls),
        option(FAULTS, "--on-nan", type=click.Choice(["stop", "skip"]), help=nan),
    ]
    return apply(add, function)
