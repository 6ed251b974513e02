"""One rank of a data-parallel training of every case, or (without a launcher) the plain Keras training for comparison.

ranks.py OUT [--comm horovod|mpi] [case ...]
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
import cases


def seed():
    import keras

    keras.utils.set_random_seed(1)  # initializers draw their seeds when layers are made, before a case sets its own


def alone(case):
    seed()
    model, x, y, arguments = case()
    x, y = cases.finite_batches(x, y) if case.__name__ == "not_finite" else (x, y)
    history = model.fit(x, y, batch_size=cases.BATCH, epochs=cases.EPOCHS, shuffle=False, verbose=0, **arguments)
    return cases.result(model, history.history), []


def sharded(case, comm, options):
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from fdt.data import open_source
    from fdt.job import FitArguments
    from fdt.keras import flavor_of
    from fdt.trainable import Trainable
    from hfdt.worker.session import RankProgram

    seed()
    model, x, y, arguments = case()
    flavor, blobs = flavor_of(model), LocalBlobs.create()
    with contextlib.closing(blobs):
        data = capture_data(flavor.name, blobs, x, y, batch_size=cases.BATCH, **arguments)
        fit = FitArguments(batch_size=cases.BATCH, epochs=cases.EPOCHS, shuffle=False)
        source = open_source(data.train, fit, blobs, 0, training=True, flavor=flavor.name)
        if not flavor.built(model):
            flavor.build(model, data.spec)
        with contextlib.closing(RankProgram(Trainable(flavor, model), comm, options)) as session:
            notes = session.prepare(source, None)
            epochs = [session.train(source, epoch, lambda step, logs: True) for epoch in range(cases.EPOCHS)]
            state = session.arrays()
    if state is not None:
        model = finalized(case()[0], flavor, data.spec, *state)
    return cases.result(model, {key: [logs[key] for logs in epochs] for key in epochs[0]}), notes


def finalized(model, flavor, spec, values, slots):
    """The model with a rank's state, after the end of Keras's fit, which EMA overwrites weights at: as on a client."""
    from fdt.trainable import Trainable

    if not flavor.built(model):
        flavor.build(model, spec)
    whole = Trainable(flavor, model)
    whole.write_model(values)
    whole.write_optimizer(slots)
    for optimizer in flavor.optimizers(model):
        if hasattr(optimizer, "finalize_variable_values"):
            optimizer.finalize_variable_values(model.trainable_variables)
    return model


def main(out, comm_name, chosen):
    warnings.simplefilter("ignore")
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "0"))
    comm = None
    if size:
        from hfdt.collectives import choose

        comm, _ = choose(comm_name, int(os.environ["OMPI_COMM_WORLD_RANK"]), size)
    notes = {}
    for flavor in ("keras", "tf_keras"):
        with contextlib.ExitStack() as stack:
            if comm is not None:
                from hfdt.worker.session import patches

                stack.enter_context(patches(flavor))
            for name, case in importlib.import_module(f"{flavor}_cases").CASES.items():
                if chosen and name not in chosen:
                    continue
                options = cases.OPTIONS.get(name, {})
                result, notes[name] = sharded(case, comm, options) if comm is not None else alone(case)
                if comm is None or comm.rank == 0:
                    np.savez(f"{out}-{name}.npz", **result)
    Path(f"{out}-{comm.rank if comm else 'alone'}.json").write_text(json.dumps(notes))


if __name__ == "__main__":
    arguments = sys.argv[2:]
    name = arguments.pop(1) and arguments.pop(0) and sys.argv[3] if arguments[:1] == ["--comm"] else "auto"
    main(sys.argv[1], name, arguments)
