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


def workers_option(function: Decorated) -> Decorated:
    """Add `-np N`."""
    default = f"{DEFAULT_WORKERS}; over hosts, in a Slurm job or with --server, all slots"
    text = f"Number of workers; may also stand after the script.  [default: {default}]"
    return option(TRAINING, "-np", "--num-proc", "workers", type=CountType("a number of workers"), help=text)(function)


def seed_option(function: Decorated) -> Decorated:
    """Add `--seed N`."""
    text = "Seed of permutations and of unseeded shuffles.  [default: the script's seed, else a random one]"
    return option(TRAINING, "--seed", type=CountType("a seed", 0), help=text)(function)


def capture_options(function: Decorated) -> Decorated:
    """Add --capture and --allow-replicated."""
    capture = (
        "extract: send the model and data of `fit` to workers. replica: every worker runs the script, for "
        "training loops that the script writes itself.  [default: auto, from the script's source]"
    )
    allow_replicated = "With replica: train even if batches cannot be divided; every worker then does the whole work."
    options = [
        option(TRAINING, "--capture", type=click.Choice(["auto", "extract", "replica"]), help=capture),
        option(TRAINING, "--allow-replicated", is_flag=True, help=allow_replicated),
    ]
    return apply(options, function)


def fault_options(function: Decorated) -> Decorated:
    """Add --restarts and --min-np."""
    restarts = "Number of lost processes that are replaced in one `fit`; a further loss ends it.  [default: 0]"
    min_np = "Once all replacements are used, continue as long as M workers remain.  [default: -np]"
    options = [
        option(FAULTS, "--restarts", type=CountType("a number of replacements", 0), help=restarts),
        option(FAULTS, "--min-np", type=CountType("a number of workers"), metavar="M", help=min_np),
    ]
    return apply(options, function)


def resume_options(function: Decorated) -> Decorated:
    """Add --run-dir, --resume and --grace-period."""
    run_dir = "Save the state after each epoch to DIR, for --resume. Also the default of --log-dir."
    resume = (
        "Continue the run that --run-dir saved in DIR: same script, arguments and options; further options "
        "may be added."
    )
    grace_period = (
        "Longest time from SIGTERM or SIGUSR1 to the end of a run with --run-dir. It is saved, and exits with "
        "code 75.  [default: 25s]"
    )
    options = [
        option(FAULTS, "--run-dir", type=DIRECTORY, metavar="DIR", help=run_dir),
        option(FAULTS, "--resume", type=DIRECTORY, metavar="DIR", help=resume),
        option(FAULTS, "--grace-period", type=Duration(), help=grace_period),
    ]
    return apply(options, function)


def check_min_np(given: dict[str, Any], workers: int) -> None:
    """Raise UsageError where --min-np is more than the `workers` of a run with its own engine."""
    if (given.get("min_np") or 0) > workers and not given.get("server"):
        raise UsageError(f"--min-np must be at most -np, which is {workers}. Received: {given['min_np']}")


def detach_option(function: Decorated) -> Decorated:
    """Add --detach."""
    text = "Return once the run trains; it continues in the background. `attach` lists, shows and ends such runs."
    return option(REPORTS, "--detach", is_flag=True, help=text)(function)


def report_options(function: Decorated) -> Decorated:
    """Add --log-dir, --tensorboard, --verbose and --quiet."""
    log_dir = "Write every record as JSON lines, and a log per worker, to DIR."
    tensorboard = "Write TensorFlow event files, one set per worker, to DIR."
    options = [
        option(REPORTS, "--log-dir", type=DIRECTORY, metavar="DIR", help=log_dir),
        option(REPORTS, "--tensorboard", type=DIRECTORY, metavar="DIR", help=tensorboard),
        option(REPORTS, "-v", "--verbose", is_flag=True, help="Print where the workers' logs are, and keep them."),
        option(REPORTS, "-q", "--quiet", is_flag=True, help="Print errors only: no progress, summary or notes."),
    ]
    return apply(options, function)


def timeline_option(function: Decorated) -> Decorated:
    """Add --timeline."""
    text = "Write the times of all workers' steps to FILE, for ui.perfetto.dev or chrome://tracing."
    return option(REPORTS, "--timeline", type=FILE, metavar="FILE", help=text)(function)


def server_options(function: Decorated) -> Decorated:
    """Add --server, --token-file, --priority, and the TLS options."""
    server = "Train on the server that `serve` started at this address."
    priority = "Priority in the server's queue; above 0 for its administrators alone.  [default: 0]"
    options = [
        option(SERVER, "--server", type=Address(), metavar=Address.name, help=server),
        token_option,
        option(SERVER, "--priority", type=click.IntRange(*PRIORITIES), metavar="N", help=priority),
    ]
    return apply(options, tls_options(function))


def token_option(function: Decorated) -> Decorated:
    """Add --token-file."""
    text = "File that holds the server's token. The environment variable FDT_TOKEN may hold it instead."
    return option(SERVER, "--token-file", type=FILE, metavar="FILE", help=text)(function)


def listen_options(function: Decorated) -> Decorated:
    """Add --host, --port, --socket, and the TLS options."""
    host = "Address to listen on; other addresses than loopback need TLS.  [default: 127.0.0.1]"
    port = "Port to listen on.  [default: a free one]"
    options = [
        option(SERVER, "--host", default="127.0.0.1", help=host),
        option(SERVER, "--port", type=CountType("a port", 0), default=0, help=port),
        option(SERVER, "--socket", type=click.Path(), metavar="PATH", help="Listen on a Unix socket instead."),
    ]
    return apply(options, tls_options(function))


def tls_options(function: Decorated) -> Decorated:
    """Add --tls-cert, --tls-key and --tls-ca."""
    texts = {
        "cert": "This side's certificate, PEM; `certs` makes one.",
        "key": "The certificate's private key, PEM.",
        "ca": "The authority that signed the other side's certificate, PEM.",
    }
    names = {f"--tls-{name}": text for name, text in texts.items()}
    return apply([option(SERVER, name, type=FILE, metavar="FILE", help=text) for name, text in names.items()], function)


def job_options(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Return those of `values` that are set as JobSpec.options: strings, "1" for a flag or a file of the client."""
    chosen = {name: values[name] for name in names if values.get(name) is not None and values[name] is not False}
    return {name: "1" if value is True or isinstance(value, Path) else str(value) for name, value in chosen.items()}


def algorithm_names(rules: Path) -> str:
    """Return the names of the algorithms in that folder, without importing them."""
    return ", ".join(sorted(file.stem for file in rules.glob("*.py") if not file.stem.startswith("_")))


def apply(options: list[Callable[[Any], Any]], function: Decorated) -> Decorated:
    """Decorate `function` with `options`, in the order in which the help lists them."""
    for decorate in reversed(options):
        function = decorate(function)
    return function
