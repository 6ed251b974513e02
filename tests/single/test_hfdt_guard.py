"""HFDT's `--on-nan`: a step with NaN in a rank's gradient changes nothing, and the rank is named."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf

from client_shim.capture.data import capture_data
from fdt.blobs import LocalBlobs
from fdt.data import open_source
from fdt.errors import UserError
from fdt.job import FitArguments
from fdt.keras import flavor_of
from fdt.patches import Patch, patched
from fdt.trainable import Trainable
from hfdt import compressors
from hfdt.collectives.base import SoloComm
from hfdt.exactness.probe_schedule import Probing
from hfdt.worker.compression import GradientCompression
from hfdt.worker.exchange import StepGroup
from hfdt.worker.nonfinite_guard import Guard
from hfdt.worker.session import RankProgram, patches
from hfdt.worker.step_context import StepContext, StepTerms
from tests.in_process_comm import on_ranks

pytestmark = pytest.mark.filterwarnings("default")
BATCH = 16
X = np.random.default_rng(0).normal(size=(5 * BATCH, 4)).astype("float32")
BAD = X.copy()
BAD[2 * BATCH + 12] = np.nan  # in step 3, of rank 1
FIT = FitArguments(batch_size=BATCH, epochs=2, shuffle=False)


def made(keras, **compiled):
    keras.utils.set_random_seed(1)
    inner = [keras.layers.Dense(6, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *inner])
    model.compile(keras.optimizers.SGD(0.05, 0.9), "mse", metrics=["mae"], **compiled)
    return model


def embedding(keras, **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(20, 6), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True), "mse", **compiled)
    return model


def averaging(keras):
    """Two updates in a step, and a copy of the model that trails it."""

    class Averaging(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.trailing = keras.layers.Dense(1), keras.layers.Dense(1)

        def call(self, x):
            return self.inner(x) + 0 * self.trailing(x)

        def train_step(self, data):
            x, y = data
            weights = self.inner.trainable_variables
            self.optimizer.apply_gradients([(0.01 * v, v) for v in weights])
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            for slow, fast in zip(self.trailing.variables, self.inner.variables, strict=True):
                slow.assign(0.9 * slow + 0.1 * fast)
            return self.compute_metrics(x, y, None)

    keras.utils.set_random_seed(1)
    model = Averaging()
    model(X)
    model.compile(keras.optimizers.SGD(0.05, 0.9), "mse")
    return model


def trained(model, x, comm, on_nan, on_step=lambda session: None, y=None, **options):
    """(logs by epoch, what was left out) of one rank."""
    flavor = flavor_of(model)
    with contextlib.closing(LocalBlobs.create()) as blobs:
        data = capture_data(flavor.name, blobs, x, np.ones(len(x), "float32") if y is None else y, batch_size=BATCH)
        if not flavor.built(model):
            flavor.build(model, data.spec)
        source = open_source(data.train, FIT, blobs, 0, training=True, flavor=flavor.name)
        options = {"on_nan": on_nan, "batch_norm": "local", **options}
        with contextlib.closing(RankProgram(Trainable(flavor, model), comm, options)) as session:
            session.prepare(source, None)
            epochs = [session.train(source, epoch, lambda *_: not on_step(session)) for epoch in range(2)]
            return epochs, (session.skipped(), session.samples())


@pytest.mark.parametrize(
    ("flavor", "compiled"), [("keras", {"jit_compile": True}), ("tf_keras", {}), ("keras", {"steps_per_execution": 2})]
)
def test_a_step_left_out_leaves_no_trace(flavor, compiled):
    keras = pytest.importorskip(flavor)
    with patches(flavor):
        expected, found = made(keras, **compiled), made(keras, **compiled)
        clean, _ = trained(expected, np.delete(X, slice(2 * BATCH, 3 * BATCH), 0), SoloComm(), "")
        logs, counted = trained(found, BAD, SoloComm(), "skip")
    assert counted == (1, 4 * BATCH)
    assert logs == [pytest.approx(epoch, rel=1e-5) for epoch in clean]
    check_equal(found, expected)


def check_equal(found, expected):
    state, clean = ([*m.get_weights(), *m.optimizer.variables] for m in (found, expected))
    for ours, theirs in zip(state, clean, strict=True):
        npt.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)  # XLA rounds otherwise where it compiles other steps


def test_a_step_of_the_scripts_own_is_left_out_whole():
    import keras

    with patches("keras"):
        expected, found = averaging(keras), averaging(keras)
        trained(expected, np.delete(X, slice(2 * BATCH, 3 * BATCH), 0), SoloComm(), "")
        _, counted = trained(found, BAD, SoloComm(), "skip")
    assert counted == (1, 4 * BATCH)
    check_equal(found, expected)


@pytest.mark.parametrize("make", [made, embedding])
def test_ranks_leave_the_same_step_out(make):
    import keras

    y = np.ones(len(X), "float32")
    bad, x = (
        (y, BAD) if make is not embedding else (np.where(np.isnan(BAD[:, 0]), np.nan, y), np.abs(X * 3).astype("int32"))
    )
    with patches("keras"):
        expected, *models = (make(keras, run_eagerly=True) for _ in range(3))  # ranks in threads
        kept = np.delete(np.arange(len(X)), slice(2 * BATCH, 3 * BATCH))
        trained(expected, x[kept], SoloComm(), "")
        options = {"batch_norm": "sync", "y": bad.astype("float32")}
        counted = on_ranks(2, lambda comm: trained(models[comm.rank], x, comm, "skip", **options)[1])
    assert [skipped for skipped, _ in counted] == [1, 1]
    for model in models:
        check_equal(model, expected)


def test_the_rank_and_its_step_are_named_on_all_ranks():
    import keras

    def rank(comm):
        model, weights = models[comm.rank], []

        def check(session):
            weights.append(model.get_weights())
            session.check_finite(1)

        with pytest.raises(
            UserError, match="NaN or infinity in the gradients of worker 1 in step 3 of epoch 2; --on-nan"
        ):
            trained(model, BAD, comm, "stop", check)
        for before, after in zip(weights[1], weights[2], strict=True):
            npt.assert_array_equal(after, before, err_msg="the bad gradient was not applied")
        return len(weights)

    # The probe stills random numbers for the whole process, which these ranks share.
    with patches("keras"), patched([Patch(Probing, "first", lambda *_: [])]):
        models = [made(keras, run_eagerly=True) for _ in range(2)]
        assert on_ranks(2, rank) == [3, 3]


@pytest.mark.parametrize("given", [120_000.0, 200_000.0])  # half of it is finite in 16 bits, or is not
def test_a_sum_that_16_bits_cannot_hold_is_nobodys(given):
    def rank(comm):
        terms = StepTerms(comm, compression=GradientCompression(compressors.make("fp16"), "fp16"))
        counted = tf.Variable([0, 0, 1], dtype=tf.int64)
        guard = Guard(SimpleNamespace(seeds=[], non_trainable=[], metrics=[]), counted, terms, skips=False)
        group = StepGroup(StepContext(replace(terms, guard=guard), tf.constant([1, 2], tf.int64)))
        group.mean([tf.constant([given])])
        with guard.step():
            guard.unless(group.whose, lambda: pytest.fail("applied"))
        with pytest.raises(UserError, match=r"the sum of all .*\(--compress fp16\) in step 1 of epoch 1"):
            guard.check(0)

    on_ranks(2, rank)
