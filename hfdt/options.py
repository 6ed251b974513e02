"""The options of `hfdt run` that choose the algorithm and its parameters, and those about ranks that fail."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import FAULTS, CountType, Duration, apply, rule_names
from fdt.cli.program import option
from fdt.errors import UsageError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Option = Callable[[Any], Any]

ALGORITHM = "Algorithm"
RULES = Path(__file__).parent / "algorithms"


class Redundancy(CountType):
    """The type of --redundancy: a number of workers, or "auto"."""

    def __init__(self) -> None:
        super().__init__("a number of workers, or auto")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a number of workers, or "auto"."""
        return value if value == "auto" else super().convert(value, param, ctx)


class MulticastType(click.ParamType[str]):
    """The type of --multicast: MPI, or IP multicast through an interface."""

    name = "mpi|ip|ip:INTERFACE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it names a multicast; otherwise end with click's error."""
        kind, colon, interface = str(value).partition(":")
        if kind not in ("mpi", "ip") or (colon and (kind == "mpi" or not interface)):
            self.fail(f"must be mpi, ip or ip:INTERFACE. Received: {value}", param, ctx)
        return str(value)


def rule_options(function: Decorated) -> Decorated:
    """Add --rule, and the options that stand for parameters of algorithms (hfdt/algorithm_registry.py, OPTIONS)."""
    rule = option(
        ALGORITHM,
        "--rule",
        "--algorithm",
        "rule",
        metavar="NAME|NAME(PARAMETER=VALUE)",
        help=f"The algorithm: {rule_names(RULES)}, or a .py file.  [default: allreduce]",
    )
    return apply([rule, *_of_rounds(), *_of_blocks()], function)


def _of_rounds() -> list[Option]:
    steps, epochs = CountType("a number of batches"), CountType("a number of epochs")
    return [
        option(
            ALGORITHM,
            "--local-steps",
            type=steps,
            metavar="K",
            help="local_sgd: number of batches between two averages.",
        ),
        option(
            ALGORITHM,
            "--local-epochs",
            type=epochs,
            metavar="N",
            help="dane, admm: passes over a worker's data per epoch.",
        ),
        option(
            ALGORITHM,
            "--local-solver",
            type=click.Choice(["optimizer", "cg"]),
            help="dane, admm: solve with the script's optimizer, or, for quadratic losses, with conjugate gradients.",
        ),
        option(
            ALGORITHM, "--dane-eta", type=float, metavar="ETA", help="dane: weight of the mean gradient of all workers."
        ),
        option(
            ALGORITHM,
            "--dane-mu",
            type=float,
            metavar="MU",
            help="dane: weight of the squared distance to the weights at the round's start.",
        ),
        option(
            ALGORITHM,
            "--admm-rho",
            type=float,
            metavar="RHO",
            help="admm: weight of the squared distance to the workers' average.",
        ),
    ]


def _of_blocks() -> list[Option]:
    return [
        option(
            ALGORITHM,
            "--redundancy",
            type=Redundancy(),
            metavar="R|auto",
            help="coded: number of workers that compute each block.  [default: auto, from measured times]",
        ),
        option(
            ALGORITHM,
            "--coding",
            type=click.Choice(["xor", "int32"]),
            help="coded: combine the bits of the floats (exact), or fixed-point numbers in [-10, 10].  [default: xor]",
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
            help="coded: each worker's share of a batch: equal, by measured speed, or as given.  [default: equal]",
        ),
        option(
            ALGORITHM,
            "--multicast",
            type=MulticastType(),
            metavar="mpi|ip|ip:INTERFACE",
            help="coded: send packets by MPI's broadcast, or by IP multicast between a switch's hosts.  [default: mpi]",
        ),
    ]


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
        raise UsageError(f"--commit-every must be a number of steps, such as 200steps, or 1epoch. Received: {value}")


def rank_fault_options(function: Decorated) -> Decorated:
    """Add --commit-every, --stall-timeout and --on-nan."""
    commits = "How often to save the state that --restarts, --min-np and --resume continue from.  [default: 1epoch]"
    stalls = (
        "A rank that keeps the others waiting this long counts as lost. After half the time a line tells where it is.  "
        "[default: none; the line comes after 60s]"
    )
    nan = (
        "A gradient with NaN or infinity: stop ends the run and names worker and step, skip leaves the step out.  "
        "[default: neither, as in Keras]"
    )
    add = [
        option(FAULTS, "--commit-every", type=Commits(), metavar=Commits.name, help=commits),
        option(FAULTS, "--stall-timeout", type=Duration(), metavar="120s", help=stalls),
        option(FAULTS, "--on-nan", type=click.Choice(["stop", "skip"]), help=nan),
    ]
    return apply(add, function)
