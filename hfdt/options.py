"""The options of `hfdt run` that choose the algorithm and its parameters, those about numbers, and about ranks."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fdt.cli.options import FAULTS, CountType, Duration, algorithm_names, together
from fdt.cli.program import option
from fdt.errors import UsageError

ALGORITHM, NUMBERS, RANKS = "Algorithm", "Numbers", "Ranks"
ALGORITHMS, COMPRESSORS = (Path(__file__).parent / folder for folder in ("algorithms", "compressors"))


class OrAuto(click.ParamType[Any]):
    """The type of an option that is of another type, or "auto"."""

    name = "auto"

    def __init__(self, other: click.ParamType[Any]) -> None:
        self._other = other

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a value of the other type, or "auto"."""
        return value if value == "auto" else self._other.convert(value, param, ctx)


class MulticastType(click.ParamType[str]):
    """The type of --multicast: MPI, or IP multicast through an interface."""

    name = "mpi|ip|ip:INTERFACE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it names a multicast; otherwise end with click's error."""
        kind, colon, interface = str(value).partition(":")
        if kind not in ("mpi", "ip") or (colon and (kind == "mpi" or not interface)):
            self.fail(f"must be mpi, ip or ip:INTERFACE. Received: {value}", param, ctx)
        return str(value)


_ALGORITHM = f"The algorithm: {algorithm_names(ALGORITHMS)}, or a .py file.  [default: allreduce]"
_LOCAL_STEPS = "local_sgd: number of batches between two averages."
_LOCAL_EPOCHS = "dane, admm: passes over a worker's data per epoch."
_LOCAL_SOLVER = "dane, admm: solve with the script's optimizer, or, for quadratic losses, with conjugate gradients."
_DANE_ETA = "dane: weight of the mean gradient of all workers."
_DANE_MU = "dane: weight of the squared distance to the weights at the round's start."
_ADMM_RHO = "admm: weight of the squared distance to the workers' average."
_REDUNDANCY = "coded: number of workers that compute each block.  [default: auto, from measured times]"
_CODING = "coded: combine the bits of the floats (exact), or fixed-point numbers in [-10, 10].  [default: xor]"
_PLACEMENT = "coded: which workers compute which blocks.  [default: paper]"
_WORKER_SHARES = "coded: each worker's share of a batch: equal, by measured speed, or as given.  [default: equal]"
_MULTICAST = "coded: send packets by MPI's broadcast, or by IP multicast between a switch's hosts.  [default: mpi]"
algorithm_options = together(  # parameters of algorithms: OPTIONS of hfdt/algorithms/__init__.py
    option(ALGORITHM, "--algorithm", "rule", old=["--rule"], metavar="NAME|NAME(PARAMETER=VALUE)", help=_ALGORITHM),
    option(ALGORITHM, "--local-steps", type=CountType("a number of batches"), metavar="K", help=_LOCAL_STEPS),
    option(ALGORITHM, "--local-epochs", type=CountType("a number of epochs"), metavar="N", help=_LOCAL_EPOCHS),
    option(ALGORITHM, "--local-solver", type=click.Choice(["optimizer", "cg"]), help=_LOCAL_SOLVER),
    option(ALGORITHM, "--dane-eta", type=float, metavar="ETA", help=_DANE_ETA),
    option(ALGORITHM, "--dane-mu", type=float, metavar="MU", help=_DANE_MU),
    option(ALGORITHM, "--admm-rho", type=float, metavar="RHO", help=_ADMM_RHO),
    option(
        ALGORITHM,
        "--redundancy",
        type=OrAuto(CountType("a number of workers, or auto")),
        metavar="R|auto",
        help=_REDUNDANCY,
    ),
    option(ALGORITHM, "--coding", type=click.Choice(["xor", "int32"]), help=_CODING),
    option(ALGORITHM, "--placement", type=click.Choice(["paper", "groups", "cyclic"]), help=_PLACEMENT),
    option(ALGORITHM, "--worker-shares", metavar="equal|measured|S,S,..", help=_WORKER_SHARES),
    option(ALGORITHM, "--multicast", type=MulticastType(), metavar="mpi|ip|ip:INTERFACE", help=_MULTICAST),
)


_COMPRESS = (
    f"Compress gradients: {algorithm_names(COMPRESSORS)}, or a .py file. auto: to 16 bits where that is "
    "measured to save a tenth of a step.  [default: none]"
)
_BUCKET_MB = (
    "Send gradients in buckets of this many megabytes, last layers first, while the rest is computed. 0: "
    "all at once. auto: by the measured link.  [default: 4]"
)
_SHARD_OPTIMIZER = (
    "Each rank updates its part of every weight and holds that part of the optimizer's slots (ZeRO-1). "
    "=auto: where that is possible and slots have 64 MB or more."
)


def _checked_compressor(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value in (None, "auto"):
        return value  # imports no TensorFlow: the script may never train
    from hfdt import compressors

    return compressors.spelled(value)


_BATCH_NORM = "BatchNorm's statistics: of the global batch, or of each worker's part.  [default: sync]"
_PARTITION = (
    "Divide the batches of a shuffled epoch among workers, or draw each batch at random from all rows."
    "  [default: shuffle-split]"
)
_BATCH = (
    "global: the script's batch size is that of all workers together, and results equal those of one "
    "machine. per-worker: it is that of each worker, as in Horovod.  [default: global]"
)
_LR_SCALE = (
    "With --batch per-worker: multiply the learning rate by the number of workers, its square root, or 1."
    "  [default: linear; none for dane and admm]"
)
_WARMUP_EPOCHS = "With --batch per-worker: raise the learning rate to the scaled one over N epochs.  [default: 0]"
number_options = together(
    option(
        NUMBERS,
        "--compress",
        callback=_checked_compressor,
        metavar="NAME|NAME(PARAMETER=VALUE)|auto",
        help=_COMPRESS,
    ),
    option(NUMBERS, "--fp16-allreduce", is_flag=True, help="The same as --compress fp16."),
    option(NUMBERS, "--bucket-mb", type=OrAuto(click.FloatRange(min=0)), metavar="MB|auto", help=_BUCKET_MB),
    option(
        NUMBERS,
        "--shard-optimizer",
        is_flag=False,
        flag_value="on",
        type=click.Choice(["on", "auto"]),
        metavar="[=auto]",
        help=_SHARD_OPTIMIZER,
    ),
    option(NUMBERS, "--batch", type=click.Choice(["global", "per-worker"]), help=_BATCH),
    option(NUMBERS, "--lr-scale", type=click.Choice(["linear", "sqrt", "none"]), help=_LR_SCALE),
    option(NUMBERS, "--warmup-epochs", type=click.FloatRange(min=0), metavar="N", help=_WARMUP_EPOCHS),
    option(NUMBERS, "--batch-norm", type=click.Choice(["sync", "local"]), help=_BATCH_NORM),
    option(NUMBERS, "--partition", type=click.Choice(["shuffle-split", "random-sampling"]), help=_PARTITION),
    option(NUMBERS, "--allow-inexact", is_flag=True, help="Train even if results differ from one machine's."),
)


_LAUNCHER = "Start ranks by mpirun, or without MPI.  [default: auto, mpirun if it is installed]"
_COMM = "Sum gradients by Horovod, or by mpi4py, which is slower.  [default: auto, Horovod if it is installed]"
_BIND_TO = "Bind each rank to its share of the host's cores, or to none.  [default: cores]"
rank_options = together(
    option(RANKS, "--launcher", type=click.Choice(["auto", "mpi", "gloo"]), help=_LAUNCHER),
    option(RANKS, "--comm", type=click.Choice(["auto", "horovod", "mpi"]), help=_COMM),
    option(RANKS, "--bind-to", type=click.Choice(["cores", "none"]), help=_BIND_TO),
)


def compressor_of(given: Mapping[str, Any]) -> str | None:
    """Return the compressor of --compress or --fp16-allreduce. Raises UsageError where it cannot be used."""
    chosen: str | None = given["compress"]
    if given["fp16_allreduce"]:
        if chosen not in (None, "fp16"):
            raise UsageError(f"--fp16-allreduce means --compress fp16. Received: --compress {chosen} too")
        chosen = "fp16"
    rule = (given["rule"] or "allreduce").partition("(")[0]
    if chosen and rule != "allreduce":
        raise UsageError(f"--compress needs --algorithm allreduce. Received: --compress {chosen} with {rule}")
    if chosen and given.get("verify") is not None:
        raise UsageError(f"a comparison needs equal numbers, which --compress changes. Received: --compress {chosen}")
    if given.get("partition") == "random-sampling" and given.get("verify") is not None:
        raise UsageError("a comparison needs equal batches. Received: --partition random-sampling")
    return chosen


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


_COMMITS = "How often to save the state that --restarts, --min-np and --resume continue from.  [default: 1epoch]"
_STALLS = (
    "A rank that keeps the others waiting this long counts as lost. After half of it a line names its position.  "
    "[default: none; the line comes after 60s]"
)
_NAN = (
    "A gradient with NaN or infinity: stop ends the run and names worker and step, skip leaves the step out.  "
    "[default: neither, as in Keras]"
)
rank_fault_options = together(
    option(FAULTS, "--commit-every", type=Commits(), metavar=Commits.name, help=_COMMITS),
    option(FAULTS, "--stall-timeout", type=Duration(), metavar="120s", help=_STALLS),
    option(FAULTS, "--on-nan", type=click.Choice(["stop", "skip"]), help=_NAN),
)
