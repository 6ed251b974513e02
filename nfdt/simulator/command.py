"""Command `nfdt simulate`: a script's training on a simulated clock; `--compare` runs it under several algorithms."""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.cli import RunRequest, flag
from fdt.cli.options import DIRECTORY, FILE, REPORTS, TRAINING, CountType, job_options, report_options, together
from fdt.cli.program import OptionsAnywhere, option
from fdt.cli.run import run
from fdt.errors import EXIT_INTERRUPTED, NeedsReplica, UsageError, UserError
from frontends.report import write_run_report
from frontends.settings import config_options
from nfdt.run_options import algorithm_options, checked_algorithm, compress_option

if TYPE_CHECKING:
    from fdt.cli.run import Client
    from fdt.network import Cluster
    from fdt.report import Reporters
    from nfdt.simulator.outcome import SimulationOutcome


NAME = "nfdt"
CLUSTER = "Simulated cluster"
JOB_OPTIONS = ("rule", "overlap", "partition", "compress")
REQUEST = ("workers", "log_dir", "tensorboard", "verbose", "quiet")
OF_ONE_RUN = ("data", "log_dir", "tensorboard")
DIRECTORIES = ("report", "data")
EQUAL_WORKERS = 8
GRACE_S = 10.0  # time for a run to end after SIGTERM
FIT_ALONE = "{}, so every rank must run the script; nfdt simulate trains by fit alone. Use nfdt run --async"

EXAMPLES = """\b
Examples:
  nfdt simulate train.py --workers 64                 64 equal workers
  nfdt simulate train.py --cluster cluster.yaml       nodes and links as described (docs/cluster.md)
  nfdt simulate train.py --compare asgd,ddc_asgd,ssgd --report out -- --epochs 2
"""


_WORKERS = f"Number of simulated workers.  [default: that of the cluster, else {EQUAL_WORKERS}]"
_CLUSTER = "Nodes and links (docs/cluster.md).  [default: equal nodes, steps of 100 ms, links that take no time]"
_OVERLAP = "Pull and push while the next gradient is computed.  [default: off]"
_SEED = "Seed of the cluster's random times, and of the script unless it sets its own.  [default: 0]"
_COMPARE = "Run the script once per algorithm, with the same seed; print one table."
_REPORT = "Write report.html, and its data as JSON and CSV, to DIR."
simulation_options = together(
    option(CLUSTER, "--workers", "-np", type=CountType("a number of workers"), help=_WORKERS),
    option(CLUSTER, "--cluster", type=FILE, metavar="FILE", help=_CLUSTER),
    option(CLUSTER, "--overlap", type=click.Choice(["on", "off"]), default="off", help=_OVERLAP),
    option(TRAINING, "--seed", type=CountType("a seed", 0), default=0, help=_SEED),
    option(REPORTS, "--compare", metavar="NAME,NAME,...", help=_COMPARE),
    option(REPORTS, "--report", type=DIRECTORY, metavar="DIR", help=_REPORT),
    option(REPORTS, "--data", type=DIRECTORY, metavar="DIR", help="Write the data only, as JSON, to DIR."),
)


@click.command("simulate", cls=OptionsAnywhere, epilog=EXAMPLES)
@simulation_options
@algorithm_options
@compress_option
@report_options
@config_options
def simulate_command(script: str, script_args: list[str], **given: Any) -> int:
    """Train script.py on simulated workers.

    Gradients are real, and the clock is simulated. The same seed always gives the same bits.
    """
    given["rule"] = checked_algorithm(given)
    given["workers"] = len(_cluster(given).workers)
    for name in DIRECTORIES:
        _check_writable(name, given[name])
    if given["compare"] is None:
        return _simulate(script, script_args, given)
    if given["rule"] is not None:
        raise UsageError(f"--compare names the algorithms. Received: --algorithm {given['rule']} too")
    for name in OF_ONE_RUN:
        if given[name] is not None:
            raise UsageError(
                f"--compare writes each algorithm's data to --report. Received: {flag(name)} {given[name]} too"
            )
    return _compare(script, script_args, given)


def _check_writable(name: str, directory: Path | None) -> None:
    """Check, before training, that a directory can be written. Raises UsageError if not."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(f"{flag(name)} cannot be written: {error}") from None


def _cluster(given: dict[str, Any]) -> "Cluster":
    """Return the requested cluster. Raises UsageError for a wrong description or another number of workers."""
    from fdt.network import equal_nodes
    from fdt.network.reading import read_cluster

    if given["cluster"] is not None:
        return read_cluster(given["cluster"]).with_workers(given["workers"])
    return equal_nodes().with_workers(given["workers"] or EQUAL_WORKERS)


def _simulate(script: str, script_args: list[str], given: dict[str, Any]) -> int:
    chosen = {name: given[name] for name in REQUEST}
    request = RunRequest(NAME, own_summary=True, script=script, write_report=write_run_report, **chosen)

    def make_engine(logs: Path) -> Any:
        from nfdt.engine import SimulationEngine

        return SimulationEngine(given["workers"], logs, given["cluster"])

    def run_script(client: "Client", reporters: "Reporters") -> int:
        import client_shim
        from client_shim.resume.randomness import seed_all
        from client_shim.state import Settings
        from fdt.report import Reporters
        from nfdt.simulator.outcome import Collector, SimulationOutcome

        collector = Collector()
        settings = Settings(job_options(given, JOB_OPTIONS), given["seed"])
        seed_all(given["seed"])
        try:
            code = client_shim.run(script, script_args, client, settings, Reporters([reporters, collector]))
        except NeedsReplica as found:
            raise NeedsReplica(FIT_ALONE.format(found.reason), found.reason) from None
        if code == 0 and collector.fits:
            _print_outcome(SimulationOutcome.of(Path(client.hello.run_dir), collector.fits, given["seed"]), given)
        return code

    return run(request, make_engine, run_script)


def _print_outcome(outcome: "SimulationOutcome", given: dict[str, Any]) -> None:
    from nfdt.simulator.outcome import summary

    if given["data"] is not None:
        outcome.write(given["data"])
    if given["report"] is not None:
        from nfdt.simulator.outcome import write_report

        outcome.write(given["report"])
        write_report([outcome], given["report"])
    for name, value in summary(outcome).items() if not given["quiet"] else ():
        click.echo(f"{NAME}: {name + ':':<12} {value}", err=True)


# -- several algorithms ---------------------------------------------------------------------------------------------


def _compare(script: str, script_args: list[str], given: dict[str, Any]) -> int:
    """Run each algorithm in its own process: Keras's state after one run must not affect the next."""
    from nfdt import algorithms
    from nfdt.simulator.outcome import print_table, write_report, write_table

    rules = split_algorithms(given["compare"])
    for rule in rules:
        algorithms.make(rule)
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-compare-") as scratch:
        root: Path = given["report"] or Path(scratch)
        outcomes, failed = [], []
        for rule in rules:
            directory = root / re.sub(r"[^A-Za-z0-9_.=-]+", "_", rule).strip("_")
            code = _run_one(script, script_args, given, rule, directory)
            if code == 0:
                outcomes.append(_read(directory))
            else:
                failed.append(f"exit code {code} under {rule}")
        if outcomes:
            print_table(outcomes)
        if outcomes and given["report"] is not None:
            write_table(outcomes, root)
            write_report(outcomes, root)
    if failed:
        raise UserError(f"runs failed: {', '.join(failed)}")
    return 0


def _run_one(script: str, script_args: list[str], given: dict[str, Any], rule: str, directory: Path) -> int:
    """Return the run's exit code. The data of an earlier comparison of this algorithm are removed."""
    from nfdt.simulator.outcome import DATA

    (directory / DATA).unlink(missing_ok=True)
    options = ["--algorithm", rule, "--data", str(directory), "--workers", str(given["workers"])]
    options += ["--seed", str(given["seed"]), "--overlap", given["overlap"], "--no-config", "--quiet"]
    for name in ("cluster", "partition", "compress"):
        options += [f"--{name}", str(given[name])] if given[name] is not None else []
    if not given["quiet"]:
        click.echo(f"{NAME}: {rule}", err=True)
    argv = [sys.executable, "-m", "nfdt", "simulate", script, *options, "--", *script_args]
    code = _waited_for(argv)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _waited_for(argv: list[str]) -> int:
    """Run a process and return its exit code. If this process is to end earlier, it terminates that one first."""
    with subprocess.Popen(argv) as running:
        try:
            return running.wait()
        except BaseException:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                try:
                    running.wait(GRACE_S)
                finally:  # also after a second signal
                    running.kill()
            raise


def _read(directory: Path) -> "SimulationOutcome":
    from nfdt.simulator.outcome import DATA, SimulationOutcome

    if not (directory / DATA).exists():
        raise UserError("--compare needs a script that calls fit()")
    return SimulationOutcome.read(directory)


def split_algorithms(text: str) -> list[str]:
    """Split `asgd,dc_asgd(lam=0.1)` at the commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    rules = [part.strip() for part in parts]
    if len(rules) < 2 or not all(rules) or len(set(rules)) < len(rules):
        raise UsageError(
            f"--compare must name two algorithms or more, each once, separated by commas. Received: {text}"
        )
    return rules
