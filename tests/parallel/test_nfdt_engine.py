"""The NFDT engine with real processes: parameter servers and workers train a captured model."""

import os
import queue
import signal

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from client_shim.capture.data import capture_data  # noqa: E402
from client_shim.capture.program import capture_program  # noqa: E402
from fdt import tensors  # noqa: E402
from fdt.job import ArrayData, BatchHooks, FitArguments, JobSpec, State  # noqa: E402
from fdt.keras import named  # noqa: E402
from fdt.rpc.session_pb2 import Command, EndEpoch, Epoch, Finish, Setup, Step  # noqa: E402
from fdt.trainable import Trainable  # noqa: E402
from nfdt.engine import NfdtEngine  # noqa: E402

pytestmark = pytest.mark.timeout(180)


class Client:
    """What the shim does, in short: one job after another, epoch by epoch."""

    def __init__(self, engine):
        self.engine, self.jobs = engine, 0

    def setup(self, model, x, y, *, epochs=1, batch=64, hooks=BatchHooks.NONE, shuffle=True, steps=0, **options):
        blobs, self.trainable = self.engine.blobs, Trainable(named("keras"), model)
        if y is None:  # a pipeline
            data = capture_data("keras", blobs, x, steps_per_epoch=steps or None).train
        else:
            skeleton, leaves = tensors.flatten((x, y))
            data = ArrayData(blobs.put_arrays(leaves), skeleton, len(x))
        spec = JobSpec(
            id=f"job{self.jobs}",
            program=capture_program(self.trainable.flavor, model, blobs)[0],
            state=State(
                blobs.put_arrays(self.trainable.model_arrays()), blobs.put_arrays(self.trainable.optimizer_arrays())
            ),
            data=data,
            fit=FitArguments(
                batch_size=batch, epochs=epochs, shuffle=shuffle, batch_hooks=hooks, steps_per_epoch=steps
            ),
            seed=1,
            options=options,
        )
        self.jobs += 1
        self.job, self.commands = spec.id, queue.SimpleQueue()
        self.events = self.engine.train(iter(self.commands.get, None))
        self.say(setup=Setup(job=spec.to_proto()))
        return self.until("ready").ready

    def say(self, **kind):
        self.commands.put(Command(job=self.job, **kind))

    def until(self, *kinds):
        for event in self.events:
            kind = event.WhichOneof("kind")
            if kind in kinds:
                return event
            if kind == "failed":
                list(self.events)
                raise AssertionError(event.failed.message + event.failed.detail)
        raise AssertionError(f"the events ended before {kinds}")

    def epoch(self, number):
        self.say(epoch=Epoch(epoch=number))
        return self.load(self.until("epoch_end").epoch_end)

    def load(self, end):
        self.trainable.load(State(end.state.model, end.state.optimizer), self.engine.blobs)
        self.trainable.write_metrics(self.engine.blobs.get_arrays(end.metrics))
        for ref in (end.state.model, end.state.optimizer, end.metrics):
            self.engine.blobs.drop(ref)
        return end

    def finish(self):
        self.say(finish=Finish())
        self.until("finished")
        list(self.events)

    def fit(self, model, x, y, epochs=1, **options):
        self.setup(model, x, y, epochs=epochs, **options)
        ends = [self.epoch(number) for number in range(epochs)]
        self.finish()
        return ends


def start(tmp_path, workers, **options):
    engine = NfdtEngine(workers, tmp_path, **options)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    engine = start(tmp_path_factory.mktemp("pair"), 2)
    yield Client(engine)
    engine.stop()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    engine = start(tmp_path_factory.mktemp("single"), 1)
    yield Client(engine)
    engine.stop()


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y.astype("int64")


def dense(optimizer, seed=0, norm=False, drops=False, **compiled):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((64,)), keras.layers.Dense(32, "relu")]
    layers += [keras.layers.BatchNormalization()] if norm else [keras.layers.Dropout(0.5)] if drops else []
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **compiled)
    model.optimizer.build(model.trainable_variables)
    named("keras").build(model, SPEC)
    return model


def _spec():
    import tensorflow as tf

    return (tf.TensorSpec((None, 64), tf.float32), tf.TensorSpec((None,), tf.int64), None)


SPEC = _spec()


def relative(a, b):
    return max(float(np.linalg.norm(p - q) / (np.linalg.norm(q) or 1)) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.05, momentum=0.9), lambda: keras.optimizers.Adam()])
def test_one_worker_trains_as_keras_does(single, digits, make, norm):
    x, y = digits[0][:500], digits[1][:500]
    ours, alone = dense(make(), norm=norm), dense(make(), norm=norm)
    ends = single.fit(ours, x, y, epochs=2, shuffle=False)
    history = alone.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0).history
    assert [end.steps for end in ends] == [8, 8]
    assert ends[-1].extra["staleness_max"] == 0
    assert relative(ours.get_weights(), alone.get_weights()) < 1e-5
    assert int(ours.optimizer.iterations) == 16
    got = {metric.name: float(metric.result()) for metric in ours.metrics if metric.name == "loss"}
    np.testing.assert_allclose(got["loss"], history["loss"][-1], rtol=1e-5)


def test_the_random_numbers_of_a_later_fit_are_those_that_follow(single, digits):
    x, y = digits[0][:200], digits[1][:200]
    ours, alone = dense(keras.optimizers.SGD(0.05), drops=True), dense(keras.optimizers.SGD(0.05), drops=True)
    for _ in range(2):
        single.fit(ours, x, y, shuffle=False)
        alone.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=0)
    assert relative(ours.get_weights(), alone.get_weights()) < 1e-5
    seeds = [[v.numpy().tolist() for v in model.non_trainable_variables] for model in (ours, alone)]
    assert seeds[0] == seeds[1] and seeds[0][0][1] > 0


def test_two_workers_learn(pair, digits):
    x, y = digits
    model = dense(keras.optimizers.SGD(0.05, momentum=0.9), norm=True)
    ends = pair.fit(model, x[:1500], y[:1500], epochs=8)
    assert [end.steps for end in ends] == [24] * 8
    assert [end.samples for end in ends] == [1500] * 8
    assert all(len(end.workers) == 2 and sum(w.samples for w in end.workers) == 1500 for end in ends)
    assert {"staleness_mean", "staleness_median", "staleness_max"} <= set(ends[0].extra)
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


def test_micro_steps_learn(pair, digits):
    x, y = digits
    model = dense(keras.optimizers.SGD(0.05, momentum=0.9), norm=True)
    ends = pair.fit(model, x[:1500], y[:1500], epochs=4, rule="ddc_asgd(micro_steps=4)")
    assert [(end.steps, end.samples) for end in ends] == [(24, 1500)] * 4, "a push is one step of the batch's rows"
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


LOCAL_STEPS = {"rule": "server_optimizer(local_steps=3)", "overlap": "on"}  # two lanes with slots of their own


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"channel": "grpc"}, 8),
        ({"channel": "grpc", "overlap": "on"}, 8),
        ({"rule": "ssgd"}, 8),
        (LOCAL_STEPS, 16),  # after 8 it was 0.71 to 0.89 in 18 runs, by the order of workers; after 16, 0.91 and more
    ],
)
def test_other_ways_learn_too(pair, digits, options, epochs):
    x, y = digits[0][:1000], digits[1][:1000]
    model = dense(keras.optimizers.Adam(0.01))
    ends = pair.fit(model, x, y, epochs=epochs, **options)
    assert [end.steps for end in ends] == [16] * epochs
    assert model.evaluate(x, y, verbose=0)[1] > 0.7


def test_lock_step(pair, digits):
    """A StepEnd after every push; stopping is at once."""
    x, y = digits[0][:640], digits[1][:640]
    model = dense(keras.optimizers.SGD(0.05))
    pair.setup(model, x, y, epochs=2, hooks=BatchHooks.LOGS)
    pair.say(epoch=Epoch(epoch=0))
    seen = []
    while (event := pair.until("step_end", "epoch_end")).HasField("step_end"):
        seen.append((event.step_end.step, event.step_end.last))
        pair.engine.blobs.drop(event.step_end.metrics)
        if not event.step_end.last:
            pair.say(step=Step())
    assert seen == [(step, step == 10) for step in range(1, 11)]
    pair.load(event.epoch_end)
    pair.say(epoch=Epoch(epoch=1))
    for _ in range(3):
        pair.until("step_end")
        pair.say(step=Step())
    pair.until("step_end")
    pair.say(end_epoch=EndEpoch())
    end = pair.load(pair.until("epoch_end").epoch_end)
    assert end.steps == 4
    assert int(model.optimizer.iterations) == 14
    counts = [float(v) for v in model.metrics_variables if v.path.startswith("loss/count")]
    assert counts == [256.0], "the metrics are of the four steps that counted"
    pair.finish()


def test_two_lanes_read_each_batch_of_a_pipeline_once(pair, digits):
    import tensorflow as tf

    x, y = digits[0][:640], digits[1][:640]
    model = dense(keras.optimizers.SGD(0.0))
    pipeline = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()  # a pass is two epochs
    pair.setup(model, pipeline, None, epochs=4, steps=10, channel="grpc", overlap="on")
    for epoch in range(4):
        end = pair.epoch(epoch)
        assert (end.steps, end.samples) == (10, 320)
        half = slice(0, 320) if epoch % 2 == 0 else slice(320, 640)
        loss = {m.name: float(m.result()) for m in model.metrics if m.name == "loss"}["loss"]
        assert loss == pytest.approx(float(model.loss(y[half], model(x[half]))), rel=1e-5)
    pair.finish()


def test_overlapped_epochs(pair, digits):
    x, y = digits[0][:640], digits[1][:640]
    ends = pair.fit(dense(keras.optimizers.SGD(0.05)), x, y, epochs=3, overlap_epochs="1")
    assert [(end.epoch, end.steps, end.samples) for end in ends] == [(0, 10, 640), (1, 10, 640), (2, 10, 640)]


def test_fewer_batches_than_workers(pair, digits):
    ends = pair.fit(dense(keras.optimizers.SGD(0.05)), digits[0][:64], digits[1][:64], epochs=3)
    assert [end.steps for end in ends] == [1, 1, 1]


def test_what_the_client_writes_between_epochs_is_used(single, digits):
    x, y = digits[0][:128], digits[1][:128]
    model = dense(keras.optimizers.SGD(0.0))
    single.setup(model, x, y, epochs=2)
    single.epoch(0)
    model.set_weights([np.ones_like(w) for w in model.get_weights()])
    blobs = single.engine.blobs
    changed = State(blobs.put_arrays(single.trainable.model_arrays()))
    single.say(epoch=Epoch(epoch=1, changed={"model": changed.model}))
    single.load(single.until("epoch_end").epoch_end)
    assert all((w == 1).all() for w in model.get_weights())
    single.finish()


def test_gradients_that_are_not_finite(single, digits):
    x, y = digits[0][:640].copy(), digits[1][:640]
    x[70] = np.inf  # in the second batch
    model = dense(keras.optimizers.SGD(0.05))
    (end,) = single.fit(model, x, y, shuffle=False, on_nan="skip")
    assert (end.steps, end.skipped, end.samples) == (9, 1, 576)
    assert int(model.optimizer.iterations) == 9
    assert all(np.isfinite(w).all() for w in model.get_weights())
    message = "of worker 0 in its step 2, batch 1 of epoch 1; --on-nan skip leaves such steps out"
    with pytest.raises(AssertionError, match=message):
        single.fit(model, x, y, shuffle=False)


def test_no_blob_is_left_and_no_generated_code_among_the_logs(single, digits):
    engine = single.engine

    def count():
        return len(list(engine.blobs.directory.iterdir()))

    single.fit(dense(keras.optimizers.SGD(0.1)), *digits)
    before = count()
    single.fit(dense(keras.optimizers.SGD(0.1)), *digits, epochs=3)
    assert count() == before + 5, "the job's own: program (2), state (2) and data, which are the client's to drop"
    generated = [path for owner in (engine.blobs.directory, engine.run_dir) for path in owner.rglob("__autograph_*")]
    assert {path.parent.parent for path in generated} == {engine.blobs.directory}, "in a directory of the engine"


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_member_killed(pair, digits, role):
    pair.setup(dense(keras.optimizers.SGD(0.05)), *digits, epochs=1000)
    attached = pair.engine._supervisor.registry.attached[role, 0]
    pair.say(epoch=Epoch(epoch=0))
    os.kill(attached.pid, signal.SIGKILL)
    message = next(e.failed.message for e in pair.events if e.HasField("failed"))
    assert f"{role} 0 was lost" in message and "SIGKILL" in message
    assert list(pair.events) == []
