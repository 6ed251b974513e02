"""One call of `fit`, as a job."""

import secrets
from collections.abc import Mapping
from typing import Any

from client_shim.batch_hooks import watches_tests
from client_shim.call import Call, Run
from client_shim.capture.data import Captured, capture_data
from client_shim.capture.program import capture_program
from fdt.job import FitArguments, JobSpec, State
from fdt.trainable import Trainable


def capture_call(run: Run, call: Call) -> Captured:
    """Put the call's data where workers can read them."""
    given: Mapping[str, Any] = {name: call.arguments[name] for name in _DATA if name in call.arguments}
    own_evaluate = type(call.model).evaluate is call.flavor.keras.Model.evaluate
    remotely = run.engine == "hfdt" and own_evaluate and not watches_tests(call.callbacks)
    return capture_data(call.flavor.name, run.blobs, **given, validate_remotely=remotely, model=call.model)


# Arguments of fit that say what the data are; the last three are tf_keras's.
_DATA = (
    "x",
    "y",
    "sample_weight",
    "batch_size",
    "steps_per_epoch",
    "class_weight",
    "validation_data",
    "validation_split",
    "validation_batch_size",
    "validation_steps",
    "shuffle",
    "epochs",
    "initial_epoch",
    "workers",
    "use_multiprocessing",
    "max_queue_size",
)


def make_job(run: Run, call: Call, captured: Captured, trainable: Trainable) -> JobSpec:
    """The job; its model and state are put where workers can read them."""
    arguments, blobs = call.arguments, run.blobs
    return JobSpec(
        id=secrets.token_hex(8),
        program=capture_program(call.flavor, call.model, blobs),
        state=State(blobs.put_arrays(trainable.model_arrays()), blobs.put_arrays(trainable.optimizer_arrays())),
        data=captured.train,
        validation=captured.validation,
        fit=FitArguments(
            batch_size=(captured.facts.batch or 0) if captured.facts.kind == "arrays" else 0,
            epochs=arguments["epochs"],
            initial_epoch=arguments["initial_epoch"] or 0,
            shuffle=bool(arguments["shuffle"]),
            steps_per_epoch=max(arguments["steps_per_epoch"] or 0, 0),
            validation_batch_size=arguments["validation_batch_size"] or arguments["batch_size"] or 0,
            validation_steps=arguments["validation_steps"] or 0,
            batch_hooks=call.hooks,
        ),
        seed=_seed(run),
        options=dict(run.settings.options),
    )


def _seed(run: Run) -> int:
    """The command line's, else the script's own (keras.utils.set_random_seed), else a fresh one; one for each fit."""
    from tensorflow.python.eager import context

    script = context.global_seed()
    first = run.settings.seed if run.settings.seed is not None else script
    return ((secrets.randbits(32) if first is None else int(first)) + run.fits) % 2**63
