"""The options of `run`, `inspect` and `serve` that both engines have, and the types of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fdt.cli.program import option
from fdt.errors import UsageError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_WORKERS = 2
PRIORITIES = (-10, 10)  # of jobs on a server

TLS_OPTIONS = ("tls_cert", "tls_key", "tls_ca")
FILE, DIRECTORY = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, path_type=Path)
TRAINING, FAULTS, REPORTS, SERVER = "Training", "Faults", "Output", "Server"


class CountType(click.ParamType[int]):
    """An integer, `least` or more."""

    name = "N"

    def __init__(self, what: str, least: int = 1) -> None:
        self.what, self.least = what, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if number < self.least:
            name = param.opts[0] if param else "it"
            raise UsageError(f"{name} must be {self.what}, {self.least} or more. Received: {value}")
        return number


class Duration(click.ParamType[float]):
    """A time in seconds: 30, 30s, 5m, 1h."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        number, unit = (text[:-1], text[-1]) if text[-1:] in "smh" else (text, "s")
        try:
            seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            name = param.opts[0] if param else "it"
            raise UsageError(f"{name} must be a time such as 30s or 5m. Received: {text}")
        return seconds


class Address(click.ParamType[str]):
    """HOST:PORT or unix:PATH."""

    name = "HOST:PORT|unix:PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from fdt.service.transport import check_address  # imports gRPC, which --help does not need

        check_address(str(value))
        return str(value)


def together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds `options` to a command, in the order in which the help lists them."""

    def decorate(function: Decorated) -> Decorated:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


_WORKERS = (
    "Number of workers; may also stand after the script.  "
    f"[default: {DEFAULT_WORKERS}; over hosts, in a Slurm job or with --server, all slots]"
)
workers_option = option(TRAINING, "-np", "--num-proc", "workers", type=CountType("a number of workers"), help=_WORKERS)

_SEED = "Seed of permutations and of unseeded shuffles.  [default: the script's seed, else a random one]"
seed_option = option(TRAINING, "--seed", type=CountType("a seed", 0), help=_SEED)

_CAPTURE = (
    "extract: send the model and data of `fit` to workers. replica: every worker runs the script, for "
    "training loops that the script writes itself.  [default: auto, from the script's source]"
)
_ALLOW_REPLICATED = "With replica: train even if batches cannot be divided; every worker then does the whole work."
capture_options = together(
    option(TRAINING, "--capture", type=click.Choice(["auto", "extract", "replica"]), help=_CAPTURE),
    option(TRAINING, "--allow-replicated", is_flag=True, help=_ALLOW_REPLICATED),
)

_RESTARTS = "Number of lost processes that are replaced in one `fit`; a further loss ends it.  [default: 0]"
_MIN_NP = "Once all replacements are used, continue as long as M workers remain.  [default: -np]"
fault_options = together(
    option(FAULTS, "--restarts", type=CountType("a number of replacements", 0), help=_RESTARTS),
    option(FAULTS, "--min-np", type=CountType("a number of workers"), metavar="M", help=_MIN_NP),
)

_RUN_DIR = "Save the state after each epoch to DIR, for --resume. Also the default of --log-dir."
_RESUME = (
    "Continue the run that --run-dir saved in DIR: same script, arguments and options; further options may be added."
)
_GRACE_PERIOD = (
    "Longest time from SIGTERM or SIGUSR1 to the end of a run with --run-dir. It is saved, and exits with "
    "code 75.  [default: 25s]"
)
resume_options = together(
    option(FAULTS, "--run-dir", type=DIRECTORY, metavar="DIR", help=_RUN_DIR),
    option(FAULTS, "--resume", type=DIRECTORY, metavar="DIR", help=_RESUME),
    option(FAULTS, "--grace-period", type=Duration(), help=_GRACE_PERIOD),
)


def check_min_np(given: dict[str, Any], workers: int) -> None:
    """Raise UsageError where --min-np is more than the `workers` of a run with its own engine."""
    if (given.get("min_np") or 0) > workers and not given.get("server"):
        raise UsageError(f"--min-np must be at most -np, which is {workers}. Received: {given['min_np']}")


_DETACH = "Return once the run trains; it continues in the background. `attach` lists, shows and ends such runs."
detach_option = option(REPORTS, "--detach", is_flag=True, help=_DETACH)

_LOG_DIR = "Write every record as JSON lines, and a log per worker, to DIR."
_TENSORBOARD = "Write TensorFlow event files, one set per worker, to DIR."
report_options = together(
    option(REPORTS, "--log-dir", type=DIRECTORY, metavar="DIR", help=_LOG_DIR),
    option(REPORTS, "--tensorboard", type=DIRECTORY, metavar="DIR", help=_TENSORBOARD),
    option(REPORTS, "-v", "--verbose", is_flag=True, help="Print where the workers' logs are, and keep them."),
    option(REPORTS, "-q", "--quiet", is_flag=True, help="Print errors only: no progress, summary or notes."),
)

_TIMELINE = "Write the times of all workers' steps to FILE, for ui.perfetto.dev or chrome://tracing."
timeline_option = option(REPORTS, "--timeline", type=FILE, metavar="FILE", help=_TIMELINE)

_TOKEN = "File that holds the server's token. The environment variable FDT_TOKEN may hold it instead."
token_option = option(SERVER, "--token-file", type=FILE, metavar="FILE", help=_TOKEN)

_TLS = {
    "--tls-cert": "This side's certificate, PEM; `certs` makes one.",
    "--tls-key": "The certificate's private key, PEM.",
    "--tls-ca": "The authority that signed the other side's certificate, PEM.",
}
tls_options = together(*(option(SERVER, name, type=FILE, metavar="FILE", help=text) for name, text in _TLS.items()))

_SERVER = "Train on the server that `serve` started at this address."
_PRIORITY = "Priority in the server's queue; above 0 for its administrators alone.  [default: 0]"
server_options = together(
    option(SERVER, "--server", type=Address(), metavar=Address.name, help=_SERVER),
    token_option,
    option(SERVER, "--priority", type=click.IntRange(*PRIORITIES), metavar="N", help=_PRIORITY),
    tls_options,
)

_HOST = "Address to listen on; other addresses than loopback need TLS.  [default: 127.0.0.1]"
_PORT = "Port to listen on.  [default: a free one]"
listen_options = together(
    option(SERVER, "--host", default="127.0.0.1", help=_HOST),
    option(SERVER, "--port", type=CountType("a port", 0), default=0, help=_PORT),
    option(SERVER, "--socket", type=click.Path(), metavar="PATH", help="Listen on a Unix socket instead."),
    tls_options,
)


def job_options(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Return those of `values` that are set as JobSpec.options: strings, "1" for a flag or a file of the client."""
    chosen = {name: values[name] for name in names if values.get(name) is not None and values[name] is not False}
    return {name: "1" if value is True or isinstance(value, Path) else str(value) for name, value in chosen.items()}


def algorithm_names(rules: Path) -> str:
    """Return the names of the algorithms in that folder, without importing them."""
    return ", ".join(sorted(file.stem for file in rules.glob("*.py") if not file.stem.startswith("_")))
