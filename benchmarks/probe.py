"""The seconds that HFDT's probe adds before the first step: two ranks, each model in a process without earlier traces.

For comparison: the same step traced with its update, which Keras does in any case and a hand-written loop needs too.
"""

import argparse
import json
import os
import sys
import time

import harness

MODELS = ("transformer", "mlp", "resnet20")


def model(name):  # type: ignore[no-untyped-def]
    """(model, x): two layers of width 128 on 64 tokens; 10 M weights; the ResNet-20 of tests/parallel/zoo.py."""
    import keras
    import numpy as np

    layers, rng = keras.layers, np.random.default_rng(0)
    if name == "mlp":
        inputs, rows = keras.Input((784,)), rng.random((128, 784), "float32")
        x = inputs
        for _ in range(3):
            x = layers.Dense(2048, "relu")(x)
        return keras.Model(inputs, layers.Dense(10)(x)), rows
    if name == "resnet20":
        sys.path.insert(0, str(harness.ROOT / "tests" / "parallel"))
        import zoo

        return zoo.resnet20()[0], rng.random((128, 32, 32, 3), "float32")
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(2000, 128)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(layers.MultiHeadAttention(4, 32)(x, x)))
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, "relu")(x)))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))), rng.integers(0, 2000, (128, 64))


def rank(name: str) -> None:
    """Measure one model, and print the result on rank 0."""
    import keras
    import numpy as np
    import tensorflow as tf

    from fdt.keras import flavor_of
    from fdt.keras.variables import batch_norms
    from fdt.trainable import Trainable
    from hfdt.collectives import choose
    from hfdt.exactness import batchnorm
    from hfdt.exactness.probe import Probe
    from hfdt.worker.session import patches
    from hfdt.worker.step_context import StepTerms

    comm, _ = choose("auto", int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    keras.utils.set_random_seed(0)
    made, x = model(name)
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    batch = tf.constant(x), tf.constant(np.arange(len(x)) % 10)
    spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
    flavor_of(made).build(made, spec)
    trainable = Trainable(flavor_of(made), made)
    with patches("keras"), batchnorm.synchronised(batch_norms(made), "keras"):
        start, cpu = time.perf_counter(), time.process_time()
        probe = Probe(trainable, StepTerms(comm), batch)
        difference = probe.run(allow_inexact=False).difference
        first, first_cpu = time.perf_counter() - start, time.process_time() - cpu
        start = time.perf_counter()
        probe.run(allow_inexact=False)
        again = time.perf_counter() - start
    start = time.perf_counter()
    tf.function(made.train_step).get_concrete_function(batch)
    traced = time.perf_counter() - start
    if comm.rank == 0:
        found = {"first": first, "cpu": first_cpu, "again": again, "step": traced, "difference": difference}
        print("bench " + json.dumps({"epoch_ends": [], **found}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank)
        return 0
    from fdt.launch.mpirun import find_mpirun

    flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    env = {**harness.threads(2), "HOROVOD_CYCLE_TIME": "0.1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    rows = []
    for name in args.models:
        argv = [str(find_mpirun()), *flags, sys.executable, __file__, "--rank", name]
        said = harness.run(argv, env).said
        times = [f"{said[key]:.2f}" for key in ("first", "cpu", "again", "step")]
        rows.append([name, *times, f"{said['difference']:.1e}"])
    headings = ["", "probe, s", "CPU of it, s", "again, s", "tracing the whole step, s", "difference"]
    harness.table(f"The probe on two ranks; {harness.machine()}", headings, rows)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
