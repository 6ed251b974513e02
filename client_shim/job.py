"""Construction of a job from one call of `fit`."""

import secrets
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from client_shim.call import FitCall
from client_shim.callbacks import watches_tests
from client_shim.capture.arrays import is_shuffled
from client_shim.capture.data import Captured, FitData, FitValidation, capture_data
from client_shim.state import ScriptRun
from fdt.job import FeedData, FitArguments, JobSpec, Program, State, is_on
from fdt.keras import is_of_keras
from fdt.trainable import Trainable

if TYPE_CHECKING:
    from client_shim.resume.checkpointing import FitCheckpoints

SEEDS = 2**31 - 1  # TensorFlow takes seeds modulo this number


def capture_call(run: ScriptRun, call: FitCall) -> Captured:
    """Put the data of `call` where workers can read them."""
    methods = ("evaluate", "test_step", "compute_metrics")
    of_keras = is_of_keras(call.flavor, call.model, *methods)
    remotely = run.engine == "hfdt" and of_keras and not watches_tests(call.callbacks)
    return capture_data(
        call.flavor.name,
        run.blobs,
        **_given(call, FitData),
        validation=FitValidation(**_given(call, FitValidation, "validation_"), in_turn=has_one_machines_numbers(run)),
        validate_remotely=remotely,
        divide=divides_batches(run),
        model=call.model,
    )


def _given(call: FitCall, kind: type[FitData | FitValidation], prefix: str = "") -> dict[str, Any]:
    """Return the arguments of `fit` that `kind` has."""
    names = [each.name for each in fields(kind)]
    return {name: call.arguments[prefix + name] for name in names if prefix + name in call.arguments}


def divides_batches(run: ScriptRun) -> bool:
    """Return whether several workers compute parts of one batch."""
    whole_batches = run.engine == "nfdt" or run.settings.options.get("batch") == "per-worker"
    may_divide = run.client.hello.workers > 1 or "elastic" in run.settings.options
    return may_divide and not whole_batches


def has_one_machines_numbers(run: ScriptRun) -> bool:
    """Return whether the run has the numbers of one machine: NFDT's have them with one worker only."""
    return (run.engine == "hfdt" or run.client.hello.workers == 1) and not is_on(run.settings.options, "allow_inexact")


def make_job(
    run: ScriptRun,
    call: FitCall,
    captured: Captured,
    program: Program,
    trainable: Trainable,
    seed: int,
    fit_checkpoints: "FitCheckpoints | None" = None,
) -> JobSpec:
    """Return the job of `call`, with its state put where workers can read it.

    Args:
        run: The run of the script.
        call: The call of `fit`.
        captured: The captured data of the call.
        program: The captured model of the call.
        trainable: The variables of the call's model, and those that its code refers to.
        seed: The job's seed; see `seed_of`.
        fit_checkpoints: The checkpoints of this `fit`, which may set the first epoch.
    """
    blobs = run.blobs
    suspendable = fit_checkpoints is not None or "elastic" in run.settings.options
    return JobSpec(
        id=secrets.token_hex(8),
        program=program,
        state=State(blobs.put_arrays(trainable.model_arrays()), blobs.put_arrays(trainable.optimizer_arrays())),
        data=captured.train,
        validation=captured.validation,
        fit=_fit_arguments(call, captured, _first_epoch(call, captured, fit_checkpoints), _order_seed(run, call, seed)),
        seed=seed,
        options=run.settings.options | ({"suspendable": "1"} if suspendable else {}),
        surroundings=run.began_in.changes(run.changed_variables).text(),
    )


@dataclass(frozen=True)
class CapturedFit:
    """A call of `fit` whose model and data have been captured.

    Attributes:
        run: The run of the script.
        call: The call.
        captured: The captured data of the call.
        trainable: The variables of the call's model, and those that its code refers to.
        job: The job that the call is sent as.
        fit_checkpoints: The checkpoints of this `fit`; None where nothing is saved.
    """

    run: ScriptRun
    call: FitCall
    captured: Captured
    trainable: Trainable
    job: JobSpec
    fit_checkpoints: "FitCheckpoints | None" = None


def _fit_arguments(call: FitCall, captured: Captured, initial_epoch: int, order_seed: int) -> FitArguments:
    arguments, facts = call.arguments, captured.facts
    return FitArguments(
        batch_size=(facts.batch or 0) if facts.kind == "arrays" else 0,
        epochs=arguments["epochs"],
        initial_epoch=initial_epoch,
        shuffle=is_shuffled(call.flavor.name, arguments["shuffle"]),
        steps_per_epoch=call.steps_per_epoch,
        validation_batch_size=arguments["validation_batch_size"] or arguments["batch_size"] or 0,
        validation_steps=arguments["validation_steps"] or 0,
        batch_hooks=call.hooks,
        order_seed=order_seed,
    )


def _order_seed(run: ScriptRun, call: FitCall, seed: int) -> int:
    """Return FitArguments.order_seed: the order is Keras's own where the script sets TensorFlow's seed.

    Args:
        run: The run of the script, which counts the call already.
        call: The call.
        seed: The job's seed; that of a resumed `fit` is of the run before, which may have had another seed.
    """
    from fdt.compat.tensorflow import context

    script, directory = context.global_seed(), run.directory
    ours = directory is not None and script == directory.arguments.seed % 2**31  # seed_all set it
    asynchronous = run.engine == "nfdt" and run.client.hello.workers > 1  # another order each epoch mixes rows better
    other = run.settings.seed is not None or call.arguments["shuffle"] == "batch"
    if script is None or ours or other or asynchronous:
        return 0
    return 1 + (seed - (run.fits - 1)) % SEEDS


def _first_epoch(call: FitCall, captured: Captured, fit_checkpoints: "FitCheckpoints | None") -> int:
    """Return the epoch from which data sources count passes over the data.

    This is `initial_epoch`, or for data that the client draws, the epoch at which training resumes. It is at most the
    last epoch: ranks read one batch before they begin, and there would be none if no epoch were left.
    """
    if fit_checkpoints is not None and isinstance(captured.train, FeedData):
        return min(fit_checkpoints.first, int(call.arguments["epochs"]) - 1)
    return int(call.arguments["initial_epoch"] or 0)


def seed_of(run: ScriptRun) -> int:
    """Return the seed of the next `fit`, different for each `fit`.

    The command line's seed comes first, then the script's (keras.utils.set_random_seed), then a random one.
    """
    from fdt.compat.tensorflow import context

    script, first = context.global_seed(), run.settings.seed
    if first is None:
        first = secrets.randbits(32) if script is None else int(script) % SEEDS
    return (first + run.fits) % 2**63
