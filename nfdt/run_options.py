"""Command-line options of a run: those that choose an algorithm, which `nfdt simulate` has too, and the engine's."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.options import FAULTS, CountType, Duration, algorithm_names, together
from fdt.cli.program import option
from fdt.errors import UsageError
from nfdt.options import CHECKPOINT_S, DEFAULT, SYNCHRONOUS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ALGORITHM, TRANSPORT = "Algorithm", "Servers and transport"
RESTARTS = 3  # default with --checkpoint-every alone
ALGORITHMS, COMPRESSORS = (Path(__file__).parent / folder for folder in ("algorithms", "compressors"))


@dataclass(frozen=True)
class DeclaredOption:
    """An option of the command line that an algorithm declares for one of its parameters.

    Attributes:
        flag: Its spelling, such as "--local-steps".
        rule: Name of the algorithm.
        parameter: The algorithm's parameter.
        metavar: The value's name in the help.
        help: The help's text.
        kind: The parameter's type: "int", "float" or another.
    """

    flag: str
    rule: str
    parameter: str
    metavar: str
    help: str
    kind: str

    @property
    def name(self) -> str:
        """The name by which click passes its value."""
        return self.flag.removeprefix("--").replace("-", "_")

    def decorator(self, group: str) -> Callable[[Decorated], Decorated]:
        """Return the decorator that adds the option to a command."""
        kind: Any = {"int": CountType("a number"), "float": float}.get(self.kind, str)
        return option(group, self.flag, type=kind, metavar=self.metavar, help=f"{self.rule}: {self.help}")


def declared_options(rules: Path) -> list[DeclaredOption]:
    """Return the options in the OPTIONS of that folder's algorithms: {flag: (parameter, metavar, help)}.

    The files are read and not imported: their imports take longer than the rest of the command line.
    """
    found = []
    for file in sorted(rules.glob("*.py")):
        source = file.read_text(encoding="utf-8")
        body = ast.parse(source).body if "OPTIONS = {" in source else []
        values = [n.value for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "OPTIONS"]
        made = [a for n in body if isinstance(n, ast.FunctionDef) and n.name == "rule" for a in n.args.args]
        kinds = {a.arg: ast.unparse(a.annotation).split(" ")[0] for a in made if a.annotation is not None}
        for flag, (parameter, metavar, text) in (item for value in values for item in ast.literal_eval(value).items()):
            found.append(DeclaredOption(flag, file.stem, parameter, metavar, text, kinds.get(parameter, "")))
    return found


DECLARED = declared_options(ALGORITHMS)

_ASYNCHRONOUS = "The default: apply each worker's gradient when it arrives; may also stand after the script."
_SYNC = f"The same as --algorithm {SYNCHRONOUS}; may also stand after the script."
_ALGORITHM = (
    f"The algorithm that applies gradients: {algorithm_names(ALGORITHMS)}, or a .py file.  [default: {DEFAULT}]"
)
_PARTITION = "Divide an epoch's batches among workers, or draw each batch at random.  [default: shuffle-split]"
algorithm_options = together(
    option(ALGORITHM, "--async", "asynchronous", is_flag=True, help=_ASYNCHRONOUS),
    option(ALGORITHM, "--sync", is_flag=True, help=_SYNC),
    option(ALGORITHM, "--algorithm", "rule", old=["--rule"], metavar="NAME|NAME(PARAMETER=VALUE)", help=_ALGORITHM),
    *(declared.decorator(ALGORITHM) for declared in DECLARED),
    option(ALGORITHM, "--partition", type=click.Choice(["shuffle-split", "random-sampling"]), help=_PARTITION),
)


def checked_algorithm(given: dict[str, Any]) -> str | None:
    """Return the algorithm that the options choose, or None for the default of the optimizer.

    Raises:
        UsageError: If the options contradict each other, or the algorithm cannot be built.
    """
    if given["sync"] and given["asynchronous"]:
        raise UsageError("training is either synchronous or asynchronous. Received: --sync and --async")
    if given["sync"] and given["rule"] is not None:
        raise UsageError(
            f"--sync means --algorithm {SYNCHRONOUS}. Received: --algorithm {given['rule']} too; give one of them"
        )
    if not given["sync"] and all(given[name] is None for name in ("rule", *(o.name for o in DECLARED))):
        return None  # imports neither algorithms nor NumPy: the script may never train
    from nfdt import algorithms

    options = {declared.name: ((declared.rule,), declared.parameter) for declared in DECLARED}
    return algorithms.spelled(SYNCHRONOUS if given["sync"] else given["rule"], options, given)


def _checked_compressor(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None  # imports no NumPy: the script may never train
    from nfdt import compressors

    return compressors.spelled(value)


_COMPRESS = (
    f"Compress pushes and pulls, or with NAME+NAME each by its own: {algorithm_names(COMPRESSORS)}, none, or a .py "
    "file.  [default: none]"
)
compress_option = option(TRANSPORT, "--compress", callback=_checked_compressor, metavar="NAME[+NAME]", help=_COMPRESS)

_SERVER_COUNT = "Number of parameter servers; each has a part of the variables.  [default: 1]"
server_count_option = option(TRANSPORT, "--ps", type=CountType("a number of servers"), metavar="K", help=_SERVER_COUNT)

_OVERLAP_EPOCHS = "Start the next epoch while the script validates; callbacks then take effect later."
_CHANNEL = "Send tensors by shared memory or gRPC streams.  [default: auto, shared memory on one host]"
_OVERLAP = "Pull and push while the next gradient is computed.  [default: auto]"
transport_options = together(
    option(ALGORITHM, "--overlap-epochs", is_flag=True, help=_OVERLAP_EPOCHS),
    option(TRANSPORT, "--channel", type=click.Choice(["auto", "shm", "grpc"]), help=_CHANNEL),
    option(TRANSPORT, "--overlap", type=click.Choice(["auto", "on", "off"]), help=_OVERLAP),
)

_CHECKPOINT = (
    "How often servers save their state in shared memory, to continue from it if a server is lost. 0s: a lost "
    f"server ends the run.  [default: {CHECKPOINT_S:g}s with --restarts; alone it means --restarts {RESTARTS} too]"
)
checkpoint_option = option(FAULTS, "--checkpoint-every", type=Duration(), metavar="30s", help=_CHECKPOINT)

_ON_NAN = (
    "A gradient with NaN or infinity: stop ends the run and names worker and step, skip leaves it out.  "
    "[default: stop; if callbacks receive every step, it is applied, as in Keras]"
)
on_nan_option = option(FAULTS, "--on-nan", type=click.Choice(["stop", "skip"]), help=_ON_NAN)
