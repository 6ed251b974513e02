"""Remote `fit`: Keras's own loop runs in the client, with a train function that calls the engine.

Keras's own `fit` runs epochs, callbacks, History and validation; only the computation of a step is replaced. The data
become one virtual step an epoch, or one per real step where callbacks read single steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client_shim import unknown_length
from client_shim.call import FitCall, Original
from client_shim.capture.arrays import batch_size, traced_spec
from client_shim.capture.data import Captured
from client_shim.capture.program import capture_program
from client_shim.changed_objects import (
    build,
    eager_check,
    refuse_changed,
    refuse_changed_between_fits,
    refuse_in_eager_steps,
    step_code,
)
from client_shim.job import CapturedFit, capture_call, divides_batches, has_one_machines_numbers, make_job, seed_of
from client_shim.not_sent import refuse_not_sent
from client_shim.remote import Remote
from client_shim.remote_model import evaluate_remotely, replaced, unreplaced
from client_shim.resume.backup import refuse_backup, restore_backup
from client_shim.resume.checkpointing import FitCheckpoints
from client_shim.row_orders import RowOrders
from client_shim.script import ScriptError
from client_shim.state import ScriptRun
from client_shim.summary import summarize
from client_shim.validation import QUEUES, ClientValidation
from client_shim.watched import watched_list
from fdt.errors import NeedsReplica, WorkerError
from fdt.job import ArrayData, BatchHooks, FeedData, GraphData, is_on
from fdt.keras import are_layers_built
from fdt.rpc.session_pb2 import Ready
from fdt.signals import held_back
from fdt.trainable import Trainable

if TYPE_CHECKING:
    from client_shim.feed import Feeder
    from fdt.service.client import Conversation


def fit_remotely(run: ScriptRun, original: Original, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `model.fit(*args, **kwargs)` on the engine of `run`.

    Args:
        run: The run of the script.
        original: Keras's own `fit` function.
        model: The model that `fit` was called on.
        args: Positional arguments of `fit`.
        kwargs: Keyword arguments of `fit`.

    Returns:
        The History that Keras's own `fit` returns.
    """
    call = FitCall.of(original, model, args, kwargs)
    if run.busy:  # a callback trains another model
        with unreplaced(model):
            return call.local()
    call.flavor.refuse(model)
    arguments = call.arguments
    if not call.flavor.compiled(model) or arguments["epochs"] <= (arguments["initial_epoch"] or 0):
        return call.local()  # Keras raises its own error, or trains no epoch
    with run.fitting():
        run.preemption.check()
        return _fit(run, call)


def _fit(run: ScriptRun, call: FitCall) -> Any:
    if not run.resumed:  # its own checkpoint comes first
        restore_backup(call)
        if call.arguments["epochs"] <= (call.arguments["initial_epoch"] or 0):
            run.count_fit()
            return call.local()
    captured = capture_call(run, call)
    refs = list(captured.refs)
    try:
        divided = divides_batches(run) and not is_on(run.settings.options, "allow_inexact")
        refuse_in_eager_steps(call, trained=run.fits > 0, divided=divided)  # to build traces the code, which may fail
        if not call.flavor.built(call.model):
            build(call, _traced_spec(call, captured), trained=run.fits > 0)
        if not call.model.trainable_variables:
            return call.local()
        code = step_code(call)
        refuse_changed_between_fits(run.traced, call, code)
        refuse_not_sent(call, code)
        program, trainable = capture_program(call.flavor, call.model, run.blobs)
        refs += [program.config, program.objects]
        seed = seed_of(run)
        run.count_fit()
        fit_checkpoints = _fit_checkpoints(run, call, captured, trainable, seed)
        if fit_checkpoints is not None and fit_checkpoints.saved is not None and fit_checkpoints.saved.done:
            if captured.feed is not None:
                captured.feed.skip(fit_checkpoints.first)
            ClientValidation(call, captured, fit_checkpoints.first).skip()
            RowOrders(run, call, captured).begin_at(fit_checkpoints.first)
            return fit_checkpoints.replay()
        job = make_job(
            run, call, captured, program, trainable, fit_checkpoints.seed if fit_checkpoints else seed, fit_checkpoints
        )
        refs += [job.state.model, job.state.optimizer]
        fit = CapturedFit(run, call, captured, trainable, job, fit_checkpoints)
        if run.instead is not None:
            return run.instead(fit)
        return _train(fit)
    finally:
        for ref in refs:
            run.blobs.drop(ref)


def _fit_checkpoints(
    run: ScriptRun, call: FitCall, captured: Captured, trainable: Trainable, seed: int
) -> FitCheckpoints | None:
    """Return the checkpoints of this `fit`, loaded with what was saved of it; None where the user wants none."""
    if run.directory is None:
        return None
    fit_checkpoints = FitCheckpoints(run, call, captured.train, trainable)
    fit_checkpoints.look(captured.train, run.blobs, seed)
    if run.resumed and fit_checkpoints.saved is None:
        refuse_backup(call, run.fits)
    return fit_checkpoints


def _train(fit: CapturedFit) -> Any:
    with held_back():
        talk: Conversation = fit.run.client.train()
    with held_back(talk.interrupt):
        return _converse(fit, talk)


def _converse(fit: CapturedFit, talk: "Conversation") -> Any:
    run, job, fit_checkpoints = fit.run, fit.job, fit.fit_checkpoints
    trained = run.fits > 1 or fit_checkpoints is not None
    check = _program_check(fit.call, job.program.digest, trained=trained)
    first = fit_checkpoints.first if fit_checkpoints is not None else fit.call.arguments["initial_epoch"] or 0
    orders = RowOrders(run, fit.call, fit.captured)
    orders.begin_at(first)
    remote = Remote(
        job, fit.trainable, talk, run.blobs, run.reporters, fit_checkpoints, run.preemption, check, orders, run.engine
    )
    validation = ClientValidation(fit.call, fit.captured, first)
    if fit.captured.in_turn:
        validation.skip()  # before the feeder draws
    feeder = fit.captured.start_feeder(talk, run.blobs, job.id, job.fit.initial_epoch)
    try:
        ready = started(remote, feeder, trained=trained, starts_over=run.settings.starts_over)
        if fit_checkpoints is not None and ready.suspendable:
            fit_checkpoints.expect_commits()
        _report(fit, ready)
        with run.preemption.training(), orders.watched():
            history = _loop(fit, remote, validation, ready.steps_per_epoch, feeder)
            remote.finish()
            unknown_length.note_end(run, fit.call, feeder)
            if fit_checkpoints is not None:
                fit_checkpoints.finished()
        return history
    except WorkerError as error:
        remote.cancel()
        if run.preemption.asked is not None:  # a batch system may have ended hosts before this process
            raise run.preemption.error() from error
        raise
    except BaseException:
        remote.cancel()
        raise
    finally:
        if fit_checkpoints is not None:
            fit_checkpoints.wait()
        run.reporters.job_end()
        if feeder is not None:
            feeder.stop()  # raises the error of the script's own data, the cause of all others


def _report(fit: CapturedFit, ready: Ready) -> None:
    for note in _notes(fit, ready):
        fit.run.reporters.note(note)
    fit.run.reporters.job(summarize(fit, ready.steps_per_epoch))


def _notes(fit: CapturedFit, ready: Ready) -> list[str]:
    """Return the engine's lines for the user, and those about the data."""
    notes = [note for note in ready.notes.split("\n") if note]
    if not has_one_machines_numbers(fit.run):
        return notes
    steps = bool(ready.steps_per_epoch)  # of a pipeline that workers read, it does not tell when a pass ends
    data = fit.captured.train
    known = data.cardinality >= -1 if isinstance(data, GraphData) else steps  # -1: infinite
    return notes + unknown_length.notes(fit.run.engine, fit.call, fit.captured.spec, known=known)


def started(remote: Remote, feeder: "Feeder | None", *, trained: bool, starts_over: bool) -> Ready:
    """Set the job up.

    A step of the script may fail on a worker alone, which traces it for batches of any size. If it fails on one
    machine too, the run that starts again shows the error as Python does.

    Args:
        remote: The job.
        feeder: The thread that draws its batches.
        trained: An earlier `fit` has trained, so that the run cannot start again.
        starts_over: NeedsReplica starts the run again.
    """
    try:
        return remote.start(feeder)
    except NeedsReplica as error:
        raise NeedsReplica(str(error), error.reason, trained=trained) from None
    except ScriptError as error:
        if trained or not starts_over:
            raise
        last = str(error).strip().rpartition("\n")[2].strip()
        reason = f"a worker could not trace the step ({last})"
        raise NeedsReplica(reason, reason, trained=False) from None


def _traced_spec(call: FitCall, captured: Captured) -> Any:
    """Return the specs of a batch, with the rows for which Keras traces a step where layers are not built."""
    data, batch = captured.train, captured.facts.batch
    if are_layers_built(call.model) or not isinstance(data, ArrayData) or not batch:
        return captured.spec
    return traced_spec(captured.spec, data.rows, batch)


def _program_check(call: FitCall, digest: str, *, trained: bool) -> Callable[[], Any]:
    at_once = call.flavor.steps_per_execution(call.model)

    def check() -> Callable[[], Any] | None:
        if call.flavor.steps_per_execution(call.model) == at_once:  # tf_keras writes it during an epoch
            with unreplaced(call.model):
                refuse_changed(call, digest, "before the first step", trained=trained)
        return eager_check(call)

    return check


def _loop(fit: CapturedFit, remote: Remote, validation: ClientValidation, steps: int, feeder: "Feeder | None") -> Any:
    """Run Keras's own `fit` with its train function replaced."""
    call, fit_checkpoints = fit.call, fit.fit_checkpoints
    arguments, model = call.arguments, call.model
    stepwise = call.hooks is not BatchHooks.NONE
    callbacks = watched_list(
        call.flavor.keras,
        call.callbacks,
        remote,
        stepwise=stepwise,
        trained=fit_checkpoints.logs if fit_checkpoints is not None else {},
        add_history=True,
        add_progbar=False,
        model=model,
        verbose=arguments["verbose"],
        epochs=arguments["epochs"],
        steps=steps or None,
    )
    own = {name: arguments[name] for name in _KEPT if name in arguments}
    if fit_checkpoints is not None:
        fit_checkpoints.prepare(feeder)
        own["initial_epoch"], own["epochs"] = fit_checkpoints.first, fit_checkpoints.last
    own["epochs"] = min(own["epochs"], _end_of_data(fit))
    own["validation_data"] = fit.captured.validation_data
    own["validation_batch_size"] = arguments["validation_batch_size"] or arguments["batch_size"]
    evaluate = validation.evaluate if fit.job.validation is None else evaluate_remotely(call, remote, stepwise)
    x = _virtual(steps if stepwise else 1)
    with replaced(fit, remote, stepwise, evaluate):
        return call.original(model, x=x, verbose=0, callbacks=callbacks, shuffle=False, **own)


def _end_of_data(fit: CapturedFit) -> int:
    """Return the epoch before which training ends: tf_keras ends it when the data end."""
    call, data = fit.call, fit.captured.train
    epochs: int = call.arguments["epochs"]
    first, steps = call.arguments["initial_epoch"] or 0, call.steps_per_epoch
    if call.flavor.name != "tf_keras" or isinstance(data, FeedData) or not steps:
        return epochs
    if isinstance(data, ArrayData):
        size = batch_size(fit.job.fit.batch_size, data.rows, steps)
        batches = -(-data.rows // size) * (epochs - first)  # tf_keras repeats arrays
    elif data.cardinality in (-1, -2, steps):  # endless, unknown, or each epoch is a pass
        return epochs
    else:
        batches = data.cardinality
    end = first + batches // steps + 1
    if end < epochs:
        fit.run.reporters.note(f"the data end in epoch {end}, so tf_keras ends fit there; repeat() gives more data")
    return end


# Arguments that Keras's own loop receives as the script gave them; the others concern training data.
_KEPT = ("epochs", "initial_epoch", "validation_steps", "validation_freq", *QUEUES)


def _virtual(steps: int) -> Any:
    """Return a dataset of `steps` placeholder steps; with 0, a dataset of unknown length."""
    import tensorflow as tf

    if steps:
        return tf.data.Dataset.range(steps)
    endless = tf.data.Dataset.range(1).repeat()
    return endless.apply(tf.data.experimental.assert_cardinality(tf.data.experimental.UNKNOWN_CARDINALITY))
