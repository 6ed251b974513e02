"""Command-line options that choose an algorithm. `nfdt run` and `nfdt simulate` share them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import apply, declared_options, rule_names
from fdt.cli.program import option
from fdt.errors import UsageError
from nfdt.options import DEFAULT, SYNCHRONOUS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ALGORITHM = "Algorithm"
RULES = Path(__file__).parent / "algorithms"
DECLARED = declared_options(RULES)


def algorithm_options(function: Decorated) -> Decorated:
    """Add --async, --sync, --rule, the options that algorithms declare, and --partition to a command."""
    add = [
        option(
            ALGORITHM,
            "--async",
            "asynchronous",
            is_flag=True,
            help="Apply each worker's gradient when it arrives (default); may also stand after the script.",
        ),
        option(
            ALGORITHM,
            "--sync",
            is_flag=True,
            help=f"The same as --rule {SYNCHRONOUS}; may also stand after the script.",
        ),
        option(
            ALGORITHM,
            "--rule",
            "--algorithm",
            "rule",
            metavar="NAME|NAME(PARAMETER=VALUE)",
            help=f"The algorithm, which applies stale gradients: {rule_names(RULES)}, or a .py file."
            f"  [default: {DEFAULT}]",
        ),
        *(declared.decorator(ALGORITHM) for declared in DECLARED),
        option(
            ALGORITHM,
            "--partition",
            type=click.Choice(["shuffle-split", "random-sampling"]),
            help="Divide an epoch's batches among workers, or draw each batch at random.  [default: shuffle-split]",
        ),
    ]
    return apply(add, function)


def checked_rule(given: dict[str, Any]) -> str | None:
    """Return the algorithm that the options choose, or None for the default of the optimizer.

    Raises:
        UsageError: If the options contradict each other, or the algorithm cannot be built.
    """
    if given["sync"] and given["asynchronous"]:
        raise UsageError("training is either synchronous or asynchronous. Received: --sync and --async")
    if given["sync"] and given["rule"] is not None:
        raise UsageError(f"--sync means --rule {SYNCHRONOUS}. Received: --rule {given['rule']} too; give one of them")
    if not given["sync"] and all(given[name] is None for name in ("rule", *(o.name for o in DECLARED))):
        return None  # imports neither algorithms nor NumPy: the script may never train
    from nfdt import algorithm_registry

    options = {declared.name: ((declared.rule,), declared.parameter) for declared in DECLARED}
    return algorithm_registry.spelled(SYNCHRONOUS if given["sync"] else given["rule"], options, given)
