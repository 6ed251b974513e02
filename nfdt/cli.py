"""Command `nfdt`: asynchronous training of an unmodified script."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from client_shim.verify.options import request_of, steps_option, verdict_option, verify_first, verify_option
from fdt.cli import detach
from fdt.cli.hosts import (
    HOST_FLAGS,
    announce,
    check_emulated,
    chosen_hosts,
    emulate_option,
    hosts_options,
    join_at_option,
    join_endpoint,
    names_hosts,
    placement_on,
    report_hosts,
    size_of,
)
from fdt.cli.options import (
    DEFAULT_WORKERS,
    REPORTS,
    capture_options,
    check_min_np,
    detach_option,
    fault_options,
    job_options,
    report_options,
    resume_options,
    seed_option,
    server_options,
    timeline_option,
    workers_option,
)
from fdt.cli.program import ScriptCommand, option, program
from fdt.cli.run import requested
from fdt.errors import EXIT_CODES, UsageError
from frontends import SHARED_COMMANDS
from frontends.pool.serve import serve, serve_options
from frontends.report import write_run_report
from frontends.settings import config_options, configure
from nfdt.run_options import (
    RESTARTS,
    TRANSPORT,
    algorithm_options,
    checked_algorithm,
    checkpoint_option,
    compress_option,
    on_nan_option,
    server_count_option,
    transport_options,
)

if TYPE_CHECKING:
    from client_shim.state import Settings
    from frontends.pool.engines import Allocation
    from nfdt.engine import NfdtEngine

    MakeNfdtEngine = Callable[..., NfdtEngine]

NAME = "nfdt"
JOB_FAULTS = ("restarts", "min_np", "on_nan", "checkpoint_every")
JOB_OPTIONS = ("rule", "compress", "channel", "overlap", "partition", "overlap_epochs", "timeline", *JOB_FAULTS)
NOT_EMULATED = {
    "workers": "-np",
    "server": "--server",
    "ps": "--ps",
    "join_at": "--join-at",
    "restarts": "--restarts",
    "min_np": "--min-np",
    **HOST_FLAGS,
}

EXAMPLES = """\b
Examples:
  nfdt run train.py -np 4                            four workers; --async is the default
  nfdt run train.py -np 4 --sync                     all workers' gradients, then one update
  nfdt run --algorithm "dc_asgd(lam=0.1)" train.py   an algorithm with a parameter
  nfdt run --log-dir logs train.py --epochs 10       options of nfdt before the script, the script's after it
  nfdt run --run-dir runs/a train.py -np 4           save each epoch; nfdt run --resume runs/a continues
  nfdt run --detach train.py -np 4                   run in the background; nfdt attach shows it
  nfdt run train.py -np 4 -- -np 3                   arguments after -- are all the script's
"""

main = program(
    NAME,
    "Train an unmodified TensorFlow script on several workers, asynchronously, through a parameter server.\n\n"
    + EXAMPLES,
    {
        **SHARED_COMMANDS,
        "advise": "frontends.advise.command:advise_command",
        "inspect": "frontends.inspect_command:nfdt_command",
        "control": "nfdt.control.command:control_command",
        "join": "nfdt.join_command:join_command",
        "simulate": "nfdt.simulator.command:simulate_command",
    },
    configure,
)


def make_emulation(cluster: Path) -> Callable[[Path], "NfdtEngine"]:
    """Return a factory of the engine on emulated hosts, as `make_engine` does."""

    def make(logs: Path) -> "NfdtEngine":
        from nfdt.engine import EmulationEngine

        return EmulationEngine(cluster, logs)

    return make


def make_engine(given: dict[str, Any]) -> "tuple[int, MakeNfdtEngine]":
    """Return the number of workers, and a factory of NFDT's engine.

    The factory takes the directory of logs, and the engine's slots where it is one of a pool.
    """
    hosts, servers = chosen_hosts(given), given["ps"] or 1
    workers = size_of(hosts, given["workers"], DEFAULT_WORKERS)
    apart = bool(given.get("restarts") or given.get("min_np"))  # members may be lost one by one
    check_min_np(given, workers)
    endpoint = None if given.get("server") else join_endpoint(given)

    def make(logs: Path, slots: "Allocation | None" = None) -> "NfdtEngine":
        from nfdt.engine import NfdtEngine

        count, where = (workers, hosts) if slots is None else (slots.workers, slots.hosts(hosts, workers))
        engine = NfdtEngine(
            count,
            logs,
            ps=servers,
            apart=apart,
            placement=placement_on(where, count, servers),
            join_endpoint=endpoint,
            blobs=slots.blobs if slots else None,
        )
        if not given.get("quiet"):
            announce(NAME, engine.reception)
        return engine

    return workers, make


@main.command("run", cls=ScriptCommand, epilog=f"{EXAMPLES}\n{EXIT_CODES}")
@workers_option
@seed_option
@capture_options
@algorithm_options
@hosts_options
@server_count_option
@transport_options
@compress_option
@emulate_option(TRANSPORT, "links and speeds")
@fault_options
@checkpoint_option
@on_nan_option
@resume_options
@join_at_option
@report_options
@timeline_option
@detach_option
@verify_option
@server_options
@config_options
def run_command(script: str, script_args: list[str], **given: Any) -> int:
    """Run script.py and train on workers.

    If it trains by `fit`, all its other code runs once, in this process. If it has a training loop of its own, every
    worker runs the script.
    """
    from client_shim import command as fits
    from client_shim.replica import command as replicas
    from client_shim.replica.detection import starting_over

    checked(given)
    if given["verify"] is not None and given["workers"] != 1:
        raise UsageError(
            "--verify K needs -np 1, because the updates of several workers differ from those of one machine"
        )
    verify_first(NAME, script, script_args, given, 1)
    request = replace(requested(NAME, script, given), write_report=write_run_report)

    of_fit = (*(name for name in JOB_OPTIONS if name != "rule"), "ps", "join_at", "emulate", "run_dir")
    if replicas.wanted(script, given, of_fit, several=False):
        if given["rule"]:
            from nfdt.replica import numpy_applier

            numpy_applier.checked(given["rule"])
        options = {**job_options(given, ("rule", "allow_replicated")), "asynchronous": "1"}
        hosts = chosen_hosts(given)
        return replicas.run(request, script_args, given["seed"], options, "nfdt.replica", hosts)

    environment = dict(os.environ)
    settings, engine = engine_of(given)
    if detach.due(request):
        os.environ.update(environment)  # restores FDT_TOKEN, which the detached command needs too
    early = bool(given["join_at"] or given["emulate"] or names_hosts(given))  # others wait for it, or may not answer
    with starting_over(NAME, given) as possible:
        settings = replace(settings, starts_over=possible)
        return fits.run(request, script_args, settings, engine, early=early)


@main.command("verify", cls=ScriptCommand)
@workers_option
@steps_option
@seed_option
@capture_options
@algorithm_options
@server_count_option
@transport_options
@verdict_option
@config_options
def verify_command(script: str, script_args: list[str], **given: Any) -> int:
    """Compare script.py alone and on one worker, step by step.

    For some steps, loss, updates, weights and printed numbers are compared.
    """
    from client_shim.verify.command import verify

    if given["workers"] not in (None, 1):
        raise UsageError(
            "nfdt verify compares one worker with the script alone: the gradients of several workers are stale. "
            f"Received: -np {given['workers']}; leave it out"
        )
    request = request_of(NAME, script, script_args, given["steps"], given["seed"], 1, given["log_dir"])
    return verify(replace(request, options=[*request.options, "-np", "1"]), as_json=given["as_json"])


@main.command("serve")
@workers_option
@serve_options
@hosts_options
@server_count_option
@join_at_option
@option(REPORTS, "--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write the logs to DIR.")
@config_options
def serve_command(**given: Any) -> int:
    """Start a pool of workers for `nfdt run --server`, until Ctrl-C.

    Each worker is a slot. A job takes as many as its -np says, and has parameter servers of its own; other jobs train
    on other slots, or wait in the queue. `nfdt queue` shows and cancels jobs.
    """
    return serve(NAME, *make_engine(given), given)


@main.command("doctor")
@hosts_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout.")
def doctor_command(as_json: bool, **given: Any) -> None:
    """Check what NFDT needs on this machine, and print what to do."""
    from fdt.doctor import common_checks, report

    hosts = chosen_hosts(given)
    title = f"{NAME} doctor"
    if not (report_hosts(NAME, hosts, as_json=as_json) if hosts else report(title, common_checks(), as_json=as_json)):
        raise SystemExit(1)


def engine_of(given: dict[str, Any]) -> "tuple[Settings, Callable[[Path], NfdtEngine]]":
    """Return a run's settings, and the factory of its engine, as the options choose them."""
    from client_shim.state import Settings

    engine = make_emulation(given["emulate"]) if given["emulate"] is not None else make_engine(given)[1]
    return Settings(job_options(given, JOB_OPTIONS), given["seed"], own_loops=given["capture"] == "extract"), engine


def checked(given: dict[str, Any]) -> None:
    """Check combinations of options, and set what follows from them. Raises UsageError for an invalid one."""
    given["rule"] = checked_algorithm(given)
    if given["checkpoint_every"] and given["restarts"] is None:
        given["restarts"] = RESTARTS
    if given["server"] and given["ps"]:
        raise UsageError(f"--ps must be given to `nfdt serve`, not with --server. Received: --ps {given['ps']}")
    if given["server"] and (given["hosts"] or given["hostfile"]):
        raise UsageError("-H and --hostfile must be given to `nfdt serve`, not with --server. Received: --server too")
    if given["server"] and given["join_at"]:
        raise UsageError("--join-at must be given to `nfdt serve`, not with --server. Received: --server too")
    check_emulated(given, NOT_EMULATED)
