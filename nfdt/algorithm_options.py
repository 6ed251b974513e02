"""Command-line options that choose an algorithm. `nfdt run` and `nfdt simulate` share them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import CountType, apply, rule_names
from fdt.cli.program import option
from fdt.errors import UsageError
from nfdt.options import SERVER_OPTIMIZER

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ALGORITHM = "Algorithm"
SYNCHRONOUS = "ssgd"
RULES = Path(__file__).parent / "algorithms"


def algorithm_options(function: Decorated) -> Decorated:
    """Add --async, --sync, --rule, the parameters of server_optimizer, and --partition to a command."""
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
            metavar="NAME|NAME(PARAMETER=VALUE)",
            help=f"The algorithm, which applies stale gradients: {rule_names(RULES)}, or a .py file."
            "  [default: ddc_asgd]",
        ),
        *server_optimizer_options(),
        option(
            ALGORITHM,
            "--partition",
            type=click.Choice(["shuffle-split", "random-sampling"]),
            help="Divide an epoch's batches among workers, or draw each batch at random.  [default: shuffle-split]",
        ),
    ]
    return apply(add, function)


def server_optimizer_options() -> list[Callable[[Decorated], Decorated]]:
    """Return the options for the parameters of server_optimizer (SERVER_OPTIMIZER in nfdt/options.py)."""
    return [
        option(
            ALGORITHM,
            "--worker-optimizer",
            type=click.Choice(["captured"]),
            help="server_optimizer: the workers' optimizer; captured is the script's.  [default: captured]",
        ),
        option(
            ALGORITHM,
            "--local-steps",
            type=CountType("a number of batches"),
            metavar="K",
            help="server_optimizer: number of batches that a worker trains before it pushes.  [default: 1]",
        ),
        option(
            ALGORITHM,
            "--server-optimizer",
            metavar="NAME",
            help="server_optimizer: sgd, adagrad, adam or yogi.  [default: sgd]",
        ),
        option(
            ALGORITHM,
            "--server-lr",
            type=float,
            metavar="RATE",
            help="server_optimizer: the server's learning rate.  [default: 1 for sgd, else 0.01]",
        ),
        option(
            ALGORITHM,
            "--server-momentum",
            type=float,
            metavar="MU",
            help="server_optimizer: the server's momentum.  [default: 0 for sgd, else 0.9]",
        ),
    ]


def checked_rule(given: dict[str, Any]) -> str | None:
    """Return the algorithm that the options choose, or None for the default of the optimizer.

    Raises:
        UsageError: If the options contradict each other, or the algorithm cannot be built.
    """
    if given["sync"] and given["asynchronous"]:
        raise UsageError("training is either synchronous or asynchronous. Received: --sync and --async")
    if given["sync"] and given["rule"] is not None:
        raise UsageError(f"--sync means --rule {SYNCHRONOUS}. Received: --rule {given['rule']} too; give one of them")
    if given["worker_optimizer"] is not None and not str(given["rule"]).startswith("server_optimizer"):
        raise UsageError(f"--worker-optimizer needs --rule server_optimizer. Received: rule {given['rule']}")
    if not given["sync"] and all(given[name] is None for name in ("rule", *SERVER_OPTIMIZER)):
        return None  # imports neither algorithms nor NumPy: the script may never train
    from nfdt import algorithm_registry

    return algorithm_registry.spelled(SYNCHRONOUS if given["sync"] else given["rule"], given)
