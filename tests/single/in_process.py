"""An algorithm's training over Keras's own fit, whose ranks are threads of the test's process."""

import contextlib

from tests.in_process_comm import on_ranks


def trained(rule, size, make, x, y, *, batch=16, epochs=2, options=None, probe=True, among=on_ranks, steps=0):
    """([weights, ...], [logs by epoch], notes) of rank 0 after `epochs` of the rule over `size` ranks.

    `make()`: a compiled Keras model, the same every time. Only rules that exchange outside the graph: ranks that wait
    inside it would keep one another's threads. `probe` False for models that draw random numbers: the probe stills
    them for the whole process, which threads share. `among(size, rank)`: runs the ranks. `y` None: `x` is a
    tf.data pipeline.
    """
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from fdt.data import open_source
    from fdt.job import FitArguments
    from fdt.keras import flavor_of
    from fdt.patches import Patch, patched
    from fdt.trainable import Trainable
    from hfdt.exactness.probe_schedule import Probing
    from hfdt.worker.session import RankProgram, patches

    models = [make() for _ in range(size)]
    flavor, blobs = flavor_of(models[0]), LocalBlobs.create()
    fit = FitArguments(batch_size=batch, epochs=epochs, shuffle=False, steps_per_epoch=steps)

    def rank(comm):
        model = models[comm.rank]
        source = open_source(data.train, fit, blobs, 0, training=True, flavor=flavor.name)
        with contextlib.closing(
            RankProgram(Trainable(flavor, model), comm, {"rule": rule, **(options or {})})
        ) as session:
            notes = session.prepare(source, None)
            logs = [session.train(source, epoch, lambda step, logs: True) for epoch in range(epochs)]
            return model.get_weights(), logs, notes, session.sent_bytes(session.epoch_steps)

    unprobed = [] if probe else [Patch(Probing, "first", lambda *_: [])]
    with contextlib.closing(blobs), patches(flavor.name), patched(unprobed):
        data = capture_data(flavor.name, blobs, x, y, batch_size=None if y is None else batch)
        for model in models:
            if not flavor.built(model):
                flavor.build(model, data.spec)
        return among(size, rank)[0]
