"""The command `hfdt`: synchronous training of an unmodified script."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from client_shim.verify.options import request_of, steps_option, verdict_option, verify_first, verify_option
from fdt.cli import flag
from fdt.cli.hosts import (
    HOST_FLAGS,
    HOST_OPTIONS,
    check_emulated,
    chosen_hosts,
    emulate_option,
    hosts_options,
    names_hosts,
    placement_on,
    size_of,
)
from fdt.cli.options import (
    DEFAULT_WORKERS,
    REPORTS,
    TRAINING,
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
from hfdt.elastic_options import ELASTIC_FLAGS, check_elastic, elastic_options, is_elastic, make_elastic
from hfdt.options import RANKS, algorithm_options, compressor_of, number_options, rank_fault_options, rank_options

if TYPE_CHECKING:
    from client_shim.state import Settings
    from frontends.pool.engines import Allocation
    from hfdt.engine.engine import HfdtEngine

    MakeHfdtEngine = Callable[..., HfdtEngine]

NAME = "hfdt"
JOB_FAULTS = ("restarts", "min_np", "on_nan", "commit_every", "stall_timeout")
JOB_NUMBERS = ("batch", "lr_scale", "warmup_epochs", "batch_norm", "partition", "allow_inexact")
JOB_OPTIONS = ("rule", "multicast", "compress", "bucket_mb", "shard_optimizer", "timeline", *JOB_NUMBERS, *JOB_FAULTS)
RANK_OPTIONS = ("launcher", "comm", "bind_to")
REPLICA_OPTIONS = ("rule", "compress", "bucket_mb", "allow_replicated", "bind_to")
NOT_EMULATED = {
    **ELASTIC_FLAGS,
    "workers": "-np",
    "server": "--server",
    "launcher": "--launcher",
    "comm": "--comm",
    "restarts": "--restarts",
    "min_np": "--min-np",
    **HOST_FLAGS,
}
PER_WORKER_ONLY = {"lr_scale": "--lr-scale", "warmup_epochs": "--warmup-epochs"}
PER_WORKER_ALGORITHMS = ("allreduce", "local_sgd", "dane", "admm")  # coded divides the script's own batches

EXAMPLES = """\b
Examples:
  hfdt run train.py -np 4                       four workers, the script's own batch size and results
  hfdt run train.py -np 4 --epochs 10           arguments after the script are the script's, except -np
  hfdt run --log-dir logs train.py -np 4        options of hfdt stand before the script
  hfdt run --algorithm dane train.py -np 4      two averages per epoch instead of one per batch
  hfdt run --run-dir runs/a train.py -np 4      save each epoch; hfdt run --resume runs/a continues
  hfdt run --detach train.py -np 4              run in the background; hfdt attach shows it
  hfdt run train.py -np 4 -- -np 3              arguments after -- are all the script's
"""

main = program(
    NAME,
    "Train an unmodified TensorFlow script on several workers, synchronously, by ring all-reduce.\n\n" + EXAMPLES,
    {
        **SHARED_COMMANDS,
        "inspect": "frontends.inspect_command:hfdt_command",
        "doctor": "hfdt.doctor:doctor_command",
        "join": "hfdt.join_command:join_command",
    },
    configure,
)


def make_engine(given: dict[str, Any]) -> "tuple[int, MakeHfdtEngine]":
    """Check the options of the ranks; return their number, and a function that makes HFDT's engine.

    The function takes a directory of logs, and the engine's slots where it is one of a pool.
    """
    chosen = {name: given[name] for name in RANK_OPTIONS if given[name] is not None}
    hosts = chosen_hosts(given)
    if hosts and given["launcher"] == "gloo":
        raise UsageError("workers on several hosts need mpirun. Received: --launcher gloo; leave it out")
    workers = size_of(hosts, given["workers"], DEFAULT_WORKERS)
    check_min_np(given, workers)
    horovod = given["comm"] != "mpi"

    def make(logs: Path, slots: "Allocation | None" = None) -> "HfdtEngine":
        from hfdt.engine.engine import HfdtEngine

        count, where = (workers, hosts) if slots is None else (slots.workers, slots.hosts(hosts, workers))
        placement = placement_on(where, count, horovod=horovod)
        return HfdtEngine(count, logs, **chosen, placement=placement, blobs=slots.blobs if slots else None)

    return workers, make


def make_emulation(given: dict[str, Any]) -> Callable[[Path], "HfdtEngine"]:
    """Return a function that makes the engine on emulated hosts, as `make_engine` does."""

    def make(logs: Path) -> "HfdtEngine":
        from hfdt.engine.emulation import EmulatedHfdtEngine

        return EmulatedHfdtEngine(given["emulate"], logs, bind_to=given["bind_to"] or "cores")

    return make


@main.command("run", cls=ScriptCommand, epilog=f"{EXAMPLES}\n{EXIT_CODES}")
@workers_option
@option(
    TRAINING, "--sync", is_flag=True, help="Train synchronously, as HFDT always does; may also stand after the script."
)
@option(TRAINING, "--async", "asynchronous", is_flag=True, hidden=True)
@seed_option
@capture_options
@algorithm_options
@number_options
@hosts_options
@elastic_options
@rank_options
@emulate_option(RANKS, "links")
@fault_options
@rank_fault_options
@resume_options
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
    verify_first(NAME, script, script_args, given, size_of(chosen_hosts(given), given["workers"], DEFAULT_WORKERS))
    request = replace(requested(NAME, script, given), write_report=write_run_report)
    of_fit = [name for name in (*JOB_OPTIONS, *RANK_OPTIONS, *ELASTIC_FLAGS, "run_dir") if name not in REPLICA_OPTIONS]
    if replicas.wanted(script, given, of_fit, divides_updates=True):
        _check_own_loop(given)
        options = {"bind_to": "cores", **job_options(given, REPLICA_OPTIONS)}
        where = chosen_hosts(given), given["emulate"]
        return replicas.run(request, script_args, given["seed"], options, "hfdt.replica", *where)
    settings, engine = engine_of(given)
    early = bool(given["emulate"] or is_elastic(given) or names_hosts(given))  # a host may not answer
    with starting_over(NAME, given) as possible:
        settings = replace(settings, starts_over=possible)
        return fits.run(request, script_args, settings, engine, early=early)


@main.command("verify", cls=ScriptCommand)
@workers_option
@steps_option
@seed_option
@capture_options
@algorithm_options
@number_options
@rank_options
@verdict_option
@config_options
def verify_command(script: str, script_args: list[str], **given: Any) -> int:
    """Compare script.py alone and divided, step by step.

    For some steps, loss, updates, weights and printed numbers are compared.
    """
    from client_shim.verify.command import verify

    compressor_of(given | {"verify": given["steps"]})
    workers = given["workers"] or DEFAULT_WORKERS
    request = request_of(NAME, script, script_args, given["steps"], given["seed"], workers, given["log_dir"])
    return verify(request, as_json=given["as_json"])


@main.command("serve")
@workers_option
@serve_options
@hosts_options
@rank_options
@option(REPORTS, "--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write the workers' logs to DIR.")
@config_options
def serve_command(**given: Any) -> int:
    """Start a pool of workers for `hfdt run --server`, until Ctrl-C.

    Each worker is a slot. A job takes as many as its -np says; other jobs train on other slots, or wait in the queue.
    `hfdt queue` shows and cancels jobs.
    """
    return serve(NAME, *make_engine(given), given)


def _check_own_loop(given: Mapping[str, Any]) -> None:
    """Raise UsageError for values that a training loop of the script's own cannot have."""
    if given["compress"] not in (None, "fp16", "bf16"):
        raise UsageError(f"a replicated script can have --compress fp16 or bf16. Received: {given['compress']}")
    if given["bucket_mb"] == "auto":
        raise UsageError("a replicated script needs --bucket-mb in megabytes. Received: auto")


def engine_of(given: dict[str, Any]) -> "tuple[Settings, Callable[[Path], HfdtEngine]]":
    """Return a run's settings, and the function that makes its engine, as the options choose them."""
    from client_shim.state import Settings

    options, elastic = job_options(given, JOB_OPTIONS), make_elastic(given)
    if elastic is not None:
        options["elastic"] = "1"
    engine = elastic or (make_emulation(given) if given["emulate"] is not None else make_engine(given)[1])
    return Settings(options, given["seed"], own_loops=given["capture"] == "extract"), engine


def checked(given: dict[str, Any]) -> None:
    """Raise UsageError for options that exclude each other; set the algorithm and compressor that they choose."""
    from hfdt import algorithms

    given["rule"] = algorithms.spelled(given["rule"], given)
    if given["asynchronous"]:
        raise UsageError("hfdt trains synchronously; use `nfdt run`. Received: --async")
    if given["batch"] != "per-worker":
        for name, spelled in PER_WORKER_ONLY.items():
            if given[name] is not None:
                raise UsageError(f"{spelled} needs --batch per-worker. Received: {spelled} {given[name]}")
    rule = (given["rule"] or "allreduce").partition("(")[0]
    if given["batch"] == "per-worker" and rule not in PER_WORKER_ALGORITHMS:
        raise UsageError(
            f"--batch per-worker needs --algorithm {' or '.join(PER_WORKER_ALGORITHMS)}. Received: --algorithm {rule}"
        )
    if given["multicast"] and rule != "coded":
        raise UsageError(f"--multicast needs --algorithm coded. Received: --multicast with {rule}")
    given["compress"] = compressor_of(given)
    for name in ("bucket_mb", "shard_optimizer", "timeline"):
        if given[name] is not None and rule != "allreduce":
            raise UsageError(f"{flag(name)} needs --algorithm allreduce. Received: --algorithm {rule}")
    _check_sharded(given)
    if given["on_nan"] and rule != "allreduce":
        raise UsageError(f"--on-nan needs --algorithm allreduce. Received: --on-nan with {rule}")
    if given["commit_every"] and not (given["restarts"] or given["min_np"] or given["run_dir"] or given["resume"]):
        raise UsageError(
            "--commit-every needs --restarts, --min-np or --run-dir, which use the saved state. "
            f"Received: --commit-every {given['commit_every']}steps alone"
        )
    check_emulated(given, NOT_EMULATED)
    check_elastic(given)
    if given["server"]:
        for name in (*RANK_OPTIONS, *HOST_OPTIONS, *ELASTIC_FLAGS):
            if given[name]:
                raise UsageError(
                    f"{flag(name)} must be given to `hfdt serve`, not with --server. Received: {given[name]}"
                )


def _check_sharded(given: dict[str, Any]) -> None:
    """Raise UsageError for options that exclude --shard-optimizer. "auto" is off where it is not possible."""
    if given["shard_optimizer"] != "on":
        return
    if given["compress"] not in (None, "fp16", "auto"):
        raise UsageError(f"--shard-optimizer can have --compress fp16 alone. Received: --compress {given['compress']}")
    if given["on_nan"] and given["compress"] == "fp16":
        raise UsageError("--on-nan needs whole gradients. Received: --shard-optimizer with --compress fp16")
