"""The options of `hfdt run` that choose the algorithm and its parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import CountType, apply, rule_names
from fdt.cli.program import option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Option = Callable[[Any], Any]

ALGORITHM = "The algorithm"
RULES = Path(__file__).parent / "algorithms"


class Redundancy(CountType):
    """The type of --redundancy: a number of workers, or "auto"."""

    def __init__(self) -> None:
        super().__init__("a number of workers (or auto)")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class MulticastType(click.ParamType[str]):
    """The type of --multicast: MPI, or IP multicast through an interface."""

    name = "mpi|ip|ip:INTERFACE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, colon, interface = str(value).partition(":")
        if kind not in ("mpi", "ip") or (colon and (kind == "mpi" or not interface)):
            self.fail(f"must be mpi, ip or ip:INTERFACE. Received: {value}", param, ctx)
        return str(value)


def rule_options(function: Decorated) -> Decorated:
    """Add --rule, and the options that stand for parameters of algorithms (hfdt/algorithm_registry.py, OPTIONS)."""
    rule = option(
        ALGORITHM,
        "--rule",
        metavar="NAME|NAME(PARAMETER=VALUE)",
        help=f"What ranks exchange, and when: {rule_names(RULES)}, or a file of your own.  [default: allreduce]",
    )
    return apply([rule, *_of_rounds(), *_of_blocks()], function)


def _of_rounds() -> list[Option]:
    steps, epochs = CountType("a number of batches"), CountType("a number of epochs")
    return [
        option(ALGORITHM, "--local-steps", type=steps, metavar="K", help="local_sgd: average after K batches."),
        option(ALGORITHM, "--local-epochs", type=epochs, metavar="N", help="dane, admm: passes over a worker's data."),
        option(
            ALGORITHM,
            "--local-solver",
            type=click.Choice(["optimizer", "cg"]),
            help="dane, admm: the script's optimizer, or conjugate gradients where the loss is a quadratic.",
        ),
        option(ALGORITHM, "--dane-eta", type=float, metavar="ETA", help="dane: weight of the whole gradient."),
        option(ALGORITHM, "--dane-mu", type=float, metavar="MU", help="dane: pull to where the round began."),
        option(ALGORITHM, "--admm-rho", type=float, metavar="RHO", help="admm: the spring between workers."),
    ]


def _of_blocks() -> list[Option]:
    return [
        option(
            ALGORITHM,
            "--redundancy",
            type=Redundancy(),
            metavar="R|auto",
            help="coded: workers that compute each block of a batch.  [default: auto, from measured times]",
        ),
        option(
            ALGORITHM,
            "--coding",
            type=click.Choice(["xor", "int32"]),
            help="coded: packets of the floats' bits, exact, or of fixed-point numbers in [-10, 10].  [default: xor]",
        ),
        option(
            ALGORITHM,
            "--placement",
            type=click.Choice(["paper", "groups", "cyclic"]),
            help="coded: which workers compute which blocks.  [default: paper]",
        ),
        option(
            ALGORITHM,
            "--worker-shares",
            metavar="equal|measured|S,S,..",
            help="coded: how much each worker is given, by its measured speed or as said.  [default: equal]",
        ),
        option(
            ALGORITHM,
            "--multicast",
            type=MulticastType(),
            metavar="mpi|ip|ip:INTERFACE",
            help="coded: packets by MPI's broadcast, or by IP multicast between hosts of one switch.  [default: mpi]",
        ),
    ]
