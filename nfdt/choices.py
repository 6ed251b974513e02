"""The options that choose an algorithm, which `nfdt run` and `nfdt simulate` share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import apply, rule_names
from fdt.cli.program import option
from fdt.errors import UsageError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ALGORITHM = "The algorithm"
SYNCHRONOUS = "ssgd"
RULES = Path(__file__).parent / "rules"


def algorithm_options(function: Decorated) -> Decorated:
    """--async, --sync, --rule, --partition."""
    add = [
        option(
            ALGORITHM,
            "--async",
            "asynchronous",
            is_flag=True,
            help="Each worker's gradient is applied as it comes (default). Also taken after the script.",
        ),
        option(ALGORITHM, "--sync", is_flag=True, help=f"--rule {SYNCHRONOUS}. Also taken after the script."),
        option(
            ALGORITHM,
            "--rule",
            metavar="NAME|NAME(PARAMETER=VALUE)",
            help=f"What the server does with a gradient that comes late: {rule_names(RULES)}, or a file of your own."
            "  [default: ddc_asgd]",
        ),
        option(
            ALGORITHM,
            "--partition",
            type=click.Choice(["shuffle-split", "random-sampling"]),
            help="Deal the epoch's batches out among workers, or draw each batch afresh.  [default: shuffle-split]",
        ),
    ]
    return apply(add, function)


def checked_rule(given: dict[str, Any]) -> str | None:
    """The rule asked for, None for the optimizer's default. Raises UsageError for one that cannot be built."""
    if given["sync"] and given["asynchronous"]:
        raise UsageError("training is either synchronous or asynchronous. Received: --sync and --async")
    if given["rule"] is None:
        return SYNCHRONOUS if given["sync"] else None
    if given["sync"]:
        raise UsageError(f"--sync is --rule {SYNCHRONOUS}: give one of them. Received: --rule {given['rule']} too")
    from nfdt import rulebook

    rulebook.make(given["rule"])
    return str(given["rule"])
