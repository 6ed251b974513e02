"""One rank of test_zoo.py: probes of the models of zoo.py, their losses in slices. `zoo_ranks.py OUT COMM NAME ...`"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
import zoo

from fdt.keras import flavor_of
from fdt.keras.variables import batch_norms
from fdt.trainable import Trainable
from hfdt.collectives import choose
from hfdt.exactness import batchnorm
from hfdt.exactness.probe import Probe
from hfdt.exactness.untouched import Untouched
from hfdt.worker.session import patches
from hfdt.worker.step_context import StepTerms


def loss_alone(model, batch):
    """Keras's own, in float32."""
    if type(model).train_step is not keras.Model.train_step:
        return float(model.train_step(batch)["loss"])
    return float(model.compute_loss(*batch, model(batch[0], training=True)))


def looked_at(comm, name):
    """(reading, notes, difference, loss over all ranks, loss of plain Keras, seconds of the probe)"""
    keras.utils.set_random_seed(1)
    model, x, y = zoo.ALL[name]()
    batch = tf.nest.map_structure(lambda part: tf.constant(part[: zoo.BATCH]), (x, y))
    flavor = flavor_of(model)
    flavor.build(model, tf.nest.map_structure(tf.type_spec_from_value, batch))
    trainable = Trainable(flavor, model)
    own = type(model).train_step is keras.Model.train_step
    with batchnorm.synchronised(batch_norms(model), "keras"):
        start = time.process_time()
        probe = Probe(trainable, StepTerms(comm, own_step=own), batch)
        found = probe.run(allow_inexact=False)
        seconds = time.process_time() - start
        with Untouched(trainable, moved=False) as state:
            state.restart()
            total, count, *_ = probe._trial.sliced(batch).metrics
    return found.reading.name, found.notes, found.difference, float(total / count), loss_alone(model, batch), seconds


def main(out, name, *models):
    comm, _ = choose(name, int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    with patches("keras"):
        found = {model: looked_at(comm, model) for model in models}
    Path(f"{out}-{comm.rank}.json").write_text(json.dumps(found))
    if comm.rank == 0:
        print("\n".join(f"{model}: {result}" for model, result in found.items()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
