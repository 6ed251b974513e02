"""A tiny captured job on the simulated clock, in the test's own process."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from client_shim.capture.program import capture_program
from fdt import tensors
from fdt.blobs import LocalBlobs
from fdt.job import ArrayData, BatchHooks, FitArguments, JobSpec, State
from fdt.keras import named
from fdt.network import Cluster, NetworkLink, NodeGroup, Speed
from fdt.trainable import Trainable, build
from nfdt.server.job import ServedJob
from nfdt.simulator.session import SimulatedJob
from nfdt.worker.step import GradientStep

BATCH, ROWS, FEATURES, CLASSES = 8, 88, 6, 3

MIXED = Cluster(
    (NodeGroup("fast", 3, Speed(1.0, 100.0)), NodeGroup("slow", 1, Speed(0.4, 20.0))),
    link=NetworkLink(100e3, 2e-3),
    server=NetworkLink(200e3),
)


def data():
    rng = np.random.default_rng(7)
    y = rng.integers(0, CLASSES, ROWS)
    return rng.normal(size=(ROWS, FEATURES)).astype("float32") + y[:, None], y.astype("int64")


def model(optimizer=None, seed=3):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(CLASSES)]
    made = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.5), loss, metrics=["accuracy"])
    made.optimizer.build(made.trainable_variables)
    spec = (tf.TensorSpec((None, FEATURES), tf.float32), tf.TensorSpec((None,), tf.int64), None)
    named("keras").build(made, spec)
    return made


WARM = {}  # by digest: what is compiled once for all tests of a process, as a worker keeps it between jobs


def built(program, blobs):
    """The workers' Trainable, its Step, and the server's Trainable."""
    if program.digest not in WARM:
        trainable = build(program, blobs)
        WARM[program.digest] = trainable, GradientStep(trainable), build(program, blobs)
    return WARM[program.digest]


@dataclass
class Simulated:
    """`events`: the session's, as they came. `calls`: (simulated seconds, kind, worker, tau) of the rule's calls."""

    session: SimulatedJob
    job: ServedJob
    events: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    def epochs(self, count):
        for epoch in range(count):
            self.session.start_epoch(epoch, State())
        return self

    @property
    def weights(self):
        return self.job.trainable.model_arrays()

    def ends(self):
        """(the server's, the workers') of each epoch."""
        found = [event.epoch_end for event in self.events if event.HasField("epoch_end")]
        return list(zip(found[::2], found[1::2], strict=True))

    def pushes(self):
        return [call for call in self.calls if call[1] in ("push", "hold")]


def simulate(cluster=MIXED, *, rule="asgd", seed=1, source=None, shuffle=True, hooks=BatchHooks.NONE, begin_s=0.0):
    """A session, ready for its first epoch."""
    directory = Path(tempfile.mkdtemp())
    blobs = LocalBlobs(directory)
    weakref.finalize(blobs, shutil.rmtree, directory)
    given = Trainable(named("keras"), source or model())
    skeleton, leaves = tensors.flatten(data())
    spec = JobSpec(
        id="job",
        program=capture_program(given.flavor, given.model, blobs)[0],
        state=State(blobs.put_arrays(given.model_arrays()), blobs.put_arrays(given.optimizer_arrays())),
        data=ArrayData(blobs.put_arrays(leaves), skeleton, ROWS),
        fit=FitArguments(batch_size=BATCH, epochs=9, shuffle=shuffle, batch_hooks=hooks),
        seed=seed,
        options={"rule": rule, "overlap": "off"},
    )
    trainable, step, served = built(spec.program, blobs)
    trainable.load(spec.state, blobs)
    job = ServedJob(spec, served, blobs, shard=0, shards=1, workers=1)
    events, calls = [], []
    session = SimulatedJob(
        job,
        step,
        trainable,
        cluster.with_workers(None),
        events.append,
        begin_s=begin_s,
        on_exchange=lambda *call: calls.append(call),
    )
    return Simulated(session, job, events, calls)
