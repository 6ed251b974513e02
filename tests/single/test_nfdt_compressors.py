"""The contract of NFDT's compressors (nfdt/compressors), their error feedback, and compressed channels."""

from dataclasses import replace

import keras
import numpy as np
import numpy.testing as npt
import pytest
import simpy
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.errors import UsageError
from fdt.job import State
from fdt.keras import named
from fdt.network.transfers import run_until
from fdt.trainable import LEFT_OUT, build
from nfdt import compressors
from nfdt.compressors import LEAST, Compression
from nfdt.server.job import ServedJob
from nfdt.server.local import LocalShardService
from nfdt.simulator.workers import SimulatedChannel
from nfdt.transport import WorkerGradient
from nfdt.transport.buffers import Buffer, Layout
from nfdt.transport.compression import CompressedLane, PullEncoder, PushDecoder, PushEncoder, add_deltas
from nfdt.transport.grpc_channel import GrpcChannels
from tests.single.nfdt_cluster import gradients

pytestmark = pytest.mark.timeout(180)
TEXTS = [*compressors.names(), "topk(fraction=0.25)"]
PULLED = [text for text in TEXTS if compressors.make(text).pull]
SHAPES = [(LEAST,), (7, 300), (3, 3, 8, 64), (5,)]


@pytest.fixture(params=TEXTS)
def push(request):
    return compressors.make(request.param).push


def vectors(number, size, scale=1.0):
    return (np.random.default_rng(number).normal(size=size) * scale).astype(np.float32)


def layout(text, shapes=SHAPES):
    return Layout([(shape, "float32") for shape in shapes], [((4,), "float32")], [], compressors.make(text))


# -- one compressor ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [LEAST, LEAST + 1, 5000])
def test_arrays_have_the_specs_and_fewer_bytes(push, size):
    arrays = push.encode(vectors(1, size))
    assert [(a.shape, a.dtype.name) for a in arrays] == push.specs(size) == push.wire(((size,), "float32"))
    assert sum(a.nbytes for a in arrays) <= (4 * size) / 2 + 16


@given(number=st.integers(0, 2**32 - 1), exponent=st.integers(-6, 6), size=st.integers(LEAST, 3 * LEAST))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("text", TEXTS)
def test_a_compressor_is_a_contraction(text, number, exponent, size):
    """|x - C(x)| < |x|: with error feedback such a compressor converges (Karimireddy et al., 2019)."""
    push, vector = compressors.make(text).push, vectors(number, size, 10.0**exponent)
    received = push.decode(push.encode(vector), size)
    assert received.shape == vector.shape and received.dtype == np.float32
    assert np.linalg.norm(vector - received) < np.linalg.norm(vector)


def test_the_same_vector_gives_the_same_bytes_and_is_not_changed(push):
    vector = vectors(2, 3000)
    before = vector.copy()
    for one, two in zip(push.encode(vector), push.encode(vector), strict=True):
        npt.assert_array_equal(one, two)
    npt.assert_array_equal(vector, before)


def test_zeros_are_received_as_zeros(push):
    zeros = np.zeros(2000, np.float32)
    npt.assert_array_equal(push.decode(push.encode(zeros), 2000), zeros)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_received_as_such(push, bad):
    vector = vectors(3, 2000)
    vector[1234] = bad
    assert not np.isfinite(push.decode(push.encode(vector), 2000)[1234])


@pytest.mark.parametrize("text", ["bf16", "fp16"])
def test_a_finite_value_that_16_bits_cannot_hold_stays_finite(text):
    push, largest = compressors.make(text).push, np.full(LEAST, np.finfo(np.float32).max)
    assert np.isfinite(push.decode(push.encode(largest), LEAST)).all()


def test_topk_sends_the_largest():
    push, vector = compressors.make("topk(fraction=0.01)").push, vectors(4, 2000)
    received = push.decode(push.encode(vector), 2000)
    largest = np.argsort(np.abs(vector))[-20:]
    npt.assert_array_equal(received[largest], vector[largest])
    assert np.count_nonzero(received) == 20


def test_small_tensors_and_other_types_are_sent_as_they_are(push):
    assert (
        push.wire(((LEAST - 1,), "float32")) == push.wire(((9999,), "float64")) == push.wire(((9999,), "int32")) == []
    )


# -- names ------------------------------------------------------------------------------------------------------------
def test_names_choose_pushes_and_pulls():
    assert compressors.make("") == Compression()
    topk, both = compressors.make("topk"), compressors.make("topk(fraction=0.1) + int8")
    assert topk.push is not None and topk.pull is None
    assert both.push is not None and both.pull is not None
    assert compressors.make("none+bf16").push is None
    assert all(compressors.describe(name) for name in compressors.names())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zip", "--compress must be one of bf16, fp16, int8, topk, or a .py file. Received: zip"),
        ("fp16+topk", "--compress: the second compressor must be one for pulls. Received: fp16.topk"),
        ("fp16+fp16+fp16", "--compress must be NAME, or NAME.NAME for pushes and pulls. Received: fp16"),
        ("topk(fraction=0)", "topk: fraction must be above 0"),
        ("topk(k=1)", "topk has no such parameter; its parameters: fraction. Received: k"),
        ("topk(fraction='a')", "topk: fraction must be float. Received: 'a'"),
        ("missing.py", "--compress must name a file that exists. Received: missing.py"),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(text, said):
    with pytest.raises(UsageError, match=said):
        compressors.make(text)


def test_a_users_file_is_found_from_any_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from nfdt.compressors.int8 import compressor\n")
    monkeypatch.chdir(tmp_path)
    spelled = compressors.spelled("mine.py+int8")
    monkeypatch.chdir("/")
    assert spelled == f"{tmp_path}/mine.py+int8" and compressors.make(spelled).push is not None


# -- error feedback ---------------------------------------------------------------------------------------------------
def pushed(encoder, decoder, form, tensors):
    """What the server receives of one push."""
    positions, sent = form.placed(WorkerGradient(tensors), encoder.encode)
    buffer = Buffer(form.push)
    buffer.write(positions, sent)
    return [None if t is None else decoder.decode(i, buffer).numpy() for i, t in enumerate(tensors)]


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_received_and_the_residual_are_the_sum_of_all_gradients(text):
    form = layout(text)
    encoder, decoder = PushEncoder(form), PushDecoder(form)
    wanted = [np.zeros(shape) for shape in SHAPES]
    received = [np.zeros(shape) for shape in SHAPES]
    for number in range(20):
        tensors = [tf.constant(vectors(number, shape, 10.0 ** (number % 3))) for shape in SHAPES]
        if number % 4 == 3:
            tensors[1] = None  # the loss does not depend on it
        for i, part in enumerate(pushed(encoder, decoder, form, tensors)):
            if part is not None:
                received[i] += part
                wanted[i] += tensors[i].numpy()
    assert 3 not in encoder.residuals, "a small tensor is not compressed"
    for i, shape in enumerate(SHAPES):
        residual = encoder.residuals.get(i, np.zeros(shape)).reshape(shape)
        npt.assert_allclose(received[i] + residual, wanted[i], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("text", TEXTS)
def test_a_gradient_that_is_not_finite_leaves_the_residual(text):
    form = layout(text, [(2000,)])
    encoder, decoder = PushEncoder(form), PushDecoder(form)
    pushed(encoder, decoder, form, [tf.constant(vectors(1, 2000))])
    before = encoder.residuals[0].copy()
    bad = vectors(2, 2000)
    bad[7] = np.nan
    (part,) = pushed(encoder, decoder, form, [tf.constant(bad)])
    assert np.isnan(part[7])
    npt.assert_array_equal(encoder.residuals[0], before)


@pytest.mark.parametrize("text", PULLED)
def test_the_worker_has_what_the_server_knows_and_comes_to_the_weights(text):
    form = layout(text)
    encoder, incoming = PullEncoder(form), Buffer(form.pull)

    def pull(weights):
        tensors = [tf.constant(w) for w in weights]
        places, sent = encoder.encode(range(len(SHAPES)), tensors, 1)
        incoming.write(places, sent)
        assert add_deltas(form, places, incoming) == list(range(len(SHAPES)))
        return sum(np.asarray(s).nbytes for s in sent)

    first = [vectors(i, shape) for i, shape in enumerate(SHAPES)]
    whole = pull(first)
    for i, weights in enumerate(first):
        npt.assert_array_equal(incoming.arrays[i], weights)
    moved = [w + vectors(9, w.shape, 0.1) for w in first]
    for number in range(4):
        assert pull(moved) < 0.6 * whole
        for i, weights in enumerate(moved):
            if i in encoder.known:
                npt.assert_array_equal(incoming.arrays[i].reshape(-1), encoder.known[i])
            worst = np.abs(incoming.arrays[i] - weights).max()
            assert worst <= 0.01 * 0.5**number, "each pull sends what the ones before it could not"


def test_a_simulated_push_is_encoded_once_also_with_logs_added():
    lane = CompressedLane(layout("topk", [(LEAST,)]))
    gradient = WorkerGradient([tf.constant(vectors(1, LEAST))])
    first = np.array(lane.pushed(gradient)[0].gradient[0])
    again, _ = lane.pushed(replace(gradient, logs={"loss": 1.0}))
    assert again.logs == {"loss": 1.0}
    npt.assert_array_equal(again.gradient[0], first)


# -- channels ---------------------------------------------------------------------------------------------------------
def wide_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    spec = (tf.TensorSpec((None, 32), tf.float32), tf.TensorSpec((None,), tf.float32), None)
    named("keras").build(model, spec)
    return model


@pytest.fixture(params=["stream", "shared memory", "simulated"])
def server(request, cluster):
    """Return (the shard service, a channel, its trainable) of a job of one worker that compresses by `text`."""

    def make(text):
        made = cluster(wide_model(), rule="asgd", overlap="off", compress=text)
        shard, env = made.shard_services[0], simpy.Environment()
        if request.param == "simulated":
            job = ServedJob(made.spec, build(made.spec.program, made.blobs), made.blobs, shard=0, shards=1, workers=1)
            shard = LocalShardService(job, 1, made._hear)
            channel = SimulatedChannel(env, shard, 0, 8, {})
            answer = channel.answer
            channel.answer = lambda: answer() if run_until(env, channel.arrived) else None
        else:
            directory = made.blobs.directory if request.param == "shared memory" else None
            kind = compressors.make(text)
            channels = GrpcChannels(made.addresses, made.token, "j", 0, directory, kind)
            (channel,) = channels(0, 8, made.owned)
        channel.open()
        shard.start_epoch(0, State())
        channel.ask()
        return shard, channel, made.trainable

    return make


@pytest.mark.parametrize(
    ("text", "close"), [("fp16", 2e-3), ("bf16", 2e-2), ("int8", 3e-2), ("topk(fraction=0.5)+int8", None)]
)
def test_a_channel_compresses_pushes_and_pulls(server, text, close):
    shard, channel, trainable = server(text)
    weights = channel.answer()
    first = [w.copy() for w in shard.job.trainable.model_arrays()]
    for tensor, want in zip(weights.tensors, first, strict=False):
        npt.assert_array_equal(tensor.numpy(), want, err_msg="the first pull is not compressed")
    gradient = gradients(trainable, 1)
    channel.push(1, WorkerGradient(gradient, 1, batches=weights.batches))
    weights = channel.answer()
    after = shard.job.trainable.model_arrays()
    assert list(weights.positions) == sorted(weights.positions)
    for i, (before, now) in enumerate(zip(first, after, strict=True)):
        if close is not None:
            npt.assert_allclose(now, before - gradient[i].numpy(), atol=close)
        npt.assert_allclose(weights.tensors[i].numpy(), now, atol=close or 3e-2)
    applied = first[0] - after[0]
    assert np.abs(applied).max() > 1.0, "the largest elements were sent"
    channel.close()


def test_a_repeated_push_and_a_new_session_change_nothing(server):
    shard, channel, trainable = server("topk(fraction=0.1)+int8")
    batches = channel.answer().batches
    gradient = WorkerGradient(gradients(trainable, 1), 1, batches=batches)
    channel.push(1, gradient)
    channel.answer()
    once = [w.copy() for w in shard.job.trainable.model_arrays()]
    channel.open()
    channel.push(1, gradient)
    weights = channel.answer()
    for i, (before, now) in enumerate(zip(once, shard.job.trainable.model_arrays(), strict=True)):
        npt.assert_array_equal(now, before)
        npt.assert_array_equal(weights.tensors[i].numpy(), now, err_msg="a session's first pull is not compressed")
    channel.close()


def test_a_learning_rate_that_the_client_writes_leaves_pulls_compressed(server):
    shard, channel, trainable = server("none+int8")
    batches, job = channel.answer().batches, shard.job
    rate = [LEFT_OUT if v is not job.trainable.model.optimizer.learning_rate else 0.5 for v in job.trainable.optimizer]
    job.load(State(optimizer=job.blobs.put_arrays(rate)))
    channel.push(1, WorkerGradient(gradients(trainable, 1), 1, batches=batches))
    weights = channel.answer()
    assert 0.5 in [float(t) for t in weights.tensors if not t.shape.rank]
    assert not np.array_equal(weights.tensors[0].numpy(), job.trainable.model_arrays()[0]), "a difference was sent"
    channel.close()


def test_weights_that_the_client_writes_are_pulled_uncompressed(server):
    shard, channel, trainable = server("int8")
    batches = channel.answer().batches
    model, job = shard.job.trainable, shard.job
    changed = [np.full_like(w, 0.123) for w in model.model_arrays()]
    job.load(State(job.blobs.put_arrays(changed), State().optimizer))
    channel.push(1, WorkerGradient([None] * len(trainable.trainable), 1, batches=batches))
    weights = channel.answer()
    for tensor, want in zip(weights.tensors, changed, strict=False):
        npt.assert_array_equal(tensor.numpy(), want)
    channel.close()
