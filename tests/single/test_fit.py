"""`fit` answered by an engine: the script observes the same as under Keras alone."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_shim.fit import fit_remotely, started
from client_shim.imports import intercepted
from client_shim.script import ScriptError
from client_shim.state import ScriptRun, Settings
from fdt.blobs import LocalBlobs
from fdt.errors import CaptureError, NeedsReplica, WorkerError
from fdt.job import BatchHooks
from fdt.report import Reporter, Reporters
from fdt.rpc import session_pb2 as pb
from tests.single import model_zoo
from tests.single.fake_engine import FakeClient

pytestmark = pytest.mark.filterwarnings("default")

X, Y = model_zoo.features(), model_zoo.labels()
ARGUMENTS: dict[str, Any] = {"epochs": 3, "batch_size": 20, "shuffle": False, "verbose": 0}


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


@pytest.fixture
def client(tmp_path: Path) -> FakeClient:
    return FakeClient(LocalBlobs(tmp_path))


@contextlib.contextmanager
def remotely(client: FakeClient, reporter: Reporter | None = None) -> Iterator[None]:
    run = ScriptRun(client, Settings({"rule": "allreduce"}), Reporters([reporter] if reporter else []))
    with intercepted(lambda *args: fit_remotely(run, *args)):
        yield


def made(keras: Any, make: Callable[[Any], Any] = model_zoo.conv_batchnorm) -> Any:
    keras.utils.set_random_seed(1)
    return make(keras)


def compare(keras: Any, client: FakeClient, make: Callable[[Any], Any], **arguments: Any) -> None:
    """Two fits alone and two with workers give the same histories, weights and iterations."""
    arguments = {**ARGUMENTS, **arguments}
    alone, x, y = made(keras, make)
    expected = [alone.fit(x, y, **arguments).history for _ in range(2)]
    model, _, _ = made(keras, make)
    with remotely(client):
        found = [model.fit(x, y, **arguments).history for _ in range(2)]
    assert [[*history.items()] for history in found] == [[*history.items()] for history in expected]
    for a, b in zip(alone.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(alone.optimizer.iterations) == int(model.optimizer.iterations)
    if make is not model_zoo.custom_everything:  # it has no loss to evaluate
        assert alone.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    assert len(client.jobs) == 2
    assert len(client.warm) == 1 or make is model_zoo.custom_everything  # unpickling here renews the test's own classes
    assert not list(client.blobs.directory.iterdir()), "blobs are dropped"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"validation_split": 0.25, "validation_freq": 2},
        {"initial_epoch": 1, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
        {"shuffle": True},
    ],
    ids=str,
)
def test_fit_is_keras_fit(keras: Any, client: FakeClient, arguments: dict[str, Any]) -> None:
    compare(keras, client, model_zoo.conv_batchnorm, **arguments)


def test_logs_of_a_custom_training_step(keras: Any, client: FakeClient) -> None:
    compare(keras, client, model_zoo.custom_everything)


def test_a_metric_whose_result_is_a_vector_is_in_history(client: FakeClient) -> None:
    import keras

    def history() -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="softmax")])
        metrics = [keras.metrics.F1Score(average=None), keras.metrics.F1Score(average="macro", name="macro")]
        model.compile("sgd", "categorical_crossentropy", metrics=metrics)
        return model.fit(X, keras.utils.to_categorical(Y, 3), **ARGUMENTS).history

    expected = history()
    with remotely(client):
        found = history()
    assert list(found) == list(expected) and "f1_score" in found
    np.testing.assert_allclose(np.asarray(found["f1_score"]), np.asarray(expected["f1_score"]), rtol=1e-5)


def test_averaged_weights_are_put_in_place_at_the_end(keras: Any, client: FakeClient) -> None:
    compare(keras, client, model_zoo.ema)


def test_callbacks_of_epochs(keras: Any, client: FakeClient, tmp_path: Path) -> None:
    c = keras.callbacks
    outcomes = []
    for where in ("alone", "workers"):
        model, x, y = made(keras, model_zoo.dense)
        folder = tmp_path / where
        folder.mkdir()
        seen: list[Any] = []
        callbacks = [
            c.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            c.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True),
            c.CSVLogger(str(folder / "log.csv")),
            [c.EarlyStopping("loss", min_delta=10.0, patience=1, restore_best_weights=True)],
            c.ReduceLROnPlateau("loss", min_delta=10.0, patience=0, cooldown=0),
            c.LambdaCallback(on_epoch_end=lambda epoch, logs, seen=seen: seen.append((epoch, dict(logs)))),
        ]
        arguments = {**ARGUMENTS, "epochs": 5, "callbacks": callbacks, "validation_data": (x, y)}
        with remotely(client) if where == "workers" else contextlib.nullcontext():
            history = model.fit(x, y, **arguments).history
        files = sorted(p.name for p in folder.iterdir())
        outcomes.append((history, model.get_weights(), seen, (folder / "log.csv").read_text(), files))
    (a, a_weights, *a_rest), (b, b_weights, *b_rest) = outcomes
    assert b == a and b_rest == a_rest and len(a["loss"]) == 2
    assert all(np.array_equal(v, w) for v, w in zip(a_weights, b_weights, strict=True))
    assert client.jobs[0].fit.batch_hooks is BatchHooks.NONE
    assert (True in {optimizer for _, optimizer in client.changed}) and client.changed[0] == (False, True)


def test_the_scripts_own_tensorboard_is_written_to(keras: Any, client: FakeClient, tmp_path: Path) -> None:
    import tensorflow as tf

    model, x, y = made(keras, model_zoo.dense)
    with remotely(client):
        history = model.fit(x, y, callbacks=[keras.callbacks.TensorBoard(str(tmp_path))], **ARGUMENTS).history
    records = tf.data.TFRecordDataset([str(path) for path in (tmp_path / "train").glob("events.*")])
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    losses = [tf.make_ndarray(v.tensor) for event in events for v in event.summary.value if v.tag == "epoch_loss"]
    assert losses == pytest.approx(history["loss"])


class Meddler:
    """Mixed into a flavor's Callback: reads logs, shrinks the weights once, stops inside an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, float(logs["loss"])))
        if len(self.seen) == 4:
            self.model.set_weights([w * 0.5 for w in self.model.get_weights()])  # type: ignore[attr-defined]
        if len(self.seen) == 14:
            self.model.stop_training = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [model_zoo.dense, model_zoo.executing_in_threes])
def test_callbacks_of_steps(keras: Any, client: FakeClient, make: Callable[[Any], Any]) -> None:
    outcomes = []
    for where in ("alone", "workers"):
        model, x, y = made(keras, make)
        callback = type("Callback", (Meddler, keras.callbacks.Callback), {})()
        arguments = {**ARGUMENTS, "epochs": 6, "batch_size": 10, "callbacks": callback, "validation_data": (x, y)}
        with remotely(client) if where == "workers" else contextlib.nullcontext():
            history = model.fit(x, y, **arguments).history
        outcomes.append((history, callback.seen, int(model.optimizer.iterations)))
    assert outcomes[0] == outcomes[1]
    assert client.jobs[0].fit.batch_hooks is BatchHooks.STATE
    assert "end_epoch" in client.commands


def test_terminate_on_nan(keras: Any, client: FakeClient) -> None:
    model, x, y = made(keras, model_zoo.dense)
    with remotely(client):
        history = model.fit(x * np.nan, y, callbacks=[keras.callbacks.TerminateOnNaN()], **ARGUMENTS).history
    assert len(history["loss"]) == 1
    assert client.jobs[0].fit.batch_hooks is BatchHooks.LOGS


def test_a_lazily_built_model_is_built_for_the_script_too(keras: Any, client: FakeClient) -> None:
    model, x, y = made(keras, model_zoo.lazy)
    with remotely(client):
        history = model.fit(x, y, **ARGUMENTS).history
    assert {"loss", "accuracy"} <= set(history) and model.predict(x[:2], verbose=0).shape == (2, 3)


def test_the_engines_own_logs_reach_callbacks_and_not_history(keras: Any, client: FakeClient) -> None:
    client.extra = {"staleness_mean": 1.5}
    model, x, y = made(keras, model_zoo.dense)
    seen: list[Any] = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["staleness_mean"]))
    with remotely(client):
        history = model.fit(x, y, callbacks=callback, **ARGUMENTS).history
    assert seen == [1.5] * 3 and "staleness_mean" not in history


def test_validation_is_the_engines_only_where_it_offers_it(keras: Any, client: FakeClient) -> None:
    for engine, expected in (("hfdt", 3), ("nfdt", 0)):
        client.hello.engine, client.commands = engine, []
        model, x, y = made(keras, model_zoo.dense)
        with remotely(client):
            model.fit(x, y, validation_data=(x, y), **ARGUMENTS)
        assert client.commands.count("evaluate") == expected


def test_a_callback_that_trains_something_trains_it_in_the_client(keras: Any, client: FakeClient) -> None:
    model, x, y = made(keras, model_zoo.dense)
    other, _, _ = made(keras, model_zoo.dense)
    inner = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: other.fit(x, y, **{**ARGUMENTS, "epochs": 1}))
    with remotely(client):
        model.fit(x, y, callbacks=[inner], **ARGUMENTS)
    assert len(client.jobs) == 1 and int(other.optimizer.iterations) == 9


def test_keras_is_left_as_it_was(keras: Any, client: FakeClient) -> None:
    original = keras.Model.fit
    model, x, y = made(keras, model_zoo.dense)
    with remotely(client):
        assert keras.Model.fit is not original
        model.fit(x, y, **ARGUMENTS)
    assert keras.Model.fit is original
    assert not {"evaluate", "make_train_function"} & set(vars(model))
    model.fit(x, y, **ARGUMENTS)


@pytest.mark.parametrize(
    ("event", "sent"),
    [
        ("on_train_begin", ["setup", "finish"]),
        ("on_epoch_end", ["setup", "epoch", "finish"]),  # the workers wait for a command, and stay ready
        ("on_train_batch_end", ["setup", "epoch"]),  # they train
    ],
)
def test_a_raising_callback_ends_the_job(client: FakeClient, event: str, sent: list[str]) -> None:
    import keras

    model, x, y = made(keras, model_zoo.dense)
    bad = type("Bad", (keras.callbacks.Callback,), {event: lambda *_, **__: {}["key"]})()
    with remotely(client), pytest.raises(KeyError):
        model.fit(x, y, callbacks=[bad], **ARGUMENTS)
    assert client.sent == sent and client.cancelled == ("finish" not in sent)
    assert not list(client.blobs.directory.iterdir())


@pytest.mark.parametrize(("users_code", "error"), [(True, ScriptError), (False, WorkerError)])
def test_a_failing_worker(client: FakeClient, users_code: bool, error: type[Exception]) -> None:
    import keras

    client.fail = pb.Failed(message="worker 1 died", detail="Traceback of the step", users_code=users_code)
    model, x, y = made(keras, model_zoo.dense)
    with remotely(client), pytest.raises(error, match="Traceback of the step" if users_code else "worker 1 died"):
        model.fit(x, y, **ARGUMENTS)
    assert client.cancelled == 1


@pytest.mark.parametrize(
    ("trained", "starts_over", "error"),
    [(False, True, NeedsReplica), (True, True, ScriptError), (False, False, ScriptError)],
)
def test_a_step_that_a_worker_cannot_trace_starts_the_run_again(trained, starts_over, error):
    class Failing:
        def start(self, feeder):
            raise ScriptError("Traceback of the step\n    ValueError: None\n")

    with pytest.raises(error, match="ValueError: None") as raised:
        started(Failing(), None, trained=trained, starts_over=starts_over)
    assert not getattr(raised.value, "trained", False)


def test_what_keras_refuses_keras_refuses(client: FakeClient) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)])
    with remotely(client), pytest.raises(ValueError, match="compile"):
        model.fit(X, Y, **ARGUMENTS)
    assert not client.jobs


def test_a_model_under_a_strategy_is_refused(client: FakeClient) -> None:
    import keras
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model, x, y = made(keras, model_zoo.dense)
    with remotely(client), pytest.raises(CaptureError, match="in the scope of OneDeviceStrategy"):
        model.fit(x, y, **ARGUMENTS)


def test_what_cannot_be_pickled_is_named(client: FakeClient, tmp_path: Path) -> None:
    import keras

    model, x, y = made(keras, model_zoo.dense)
    model.handle = open(tmp_path / "open", "w")
    with remotely(client), model.handle, pytest.raises(CaptureError, match=r"Sequential\.handle"):
        model.fit(x, y, **ARGUMENTS)


def test_reporters_hear_of_the_job(client: FakeClient) -> None:
    import keras

    heard: list[Any] = []

    class Hearing(Reporter):
        def job(self, job: Any) -> None:
            heard.append(("job", job.parameters, job.steps_per_epoch, job.loss, job.optimizer))

        def epoch_begin(self, epoch: int) -> None:
            heard.append(("begin", epoch))

        def epoch_end(self, epoch: int, logs: Any) -> None:
            heard.append(("end", epoch, sorted(logs)))

        def job_end(self) -> None:
            heard.append("job_end")

    model, x, y = made(keras, model_zoo.dense)
    with remotely(client, Hearing()):
        model.fit(x, y, validation_data=(x, y), **{**ARGUMENTS, "epochs": 1})
    ends = ("end", 0, ["accuracy", "loss", "val_accuracy", "val_loss"])
    assert heard == [("job", 75, 3, "sparse_categorical_crossentropy", "SGD"), ("begin", 0), ends, "job_end"]


def weighed(layer, inputs):
    return inputs * layer.beta


@pytest.mark.parametrize(
    ("hook", "eagerly", "reason"),
    [
        ("on_epoch_end", False, ""),
        ("on_epoch_end", True, r"Raise \(test_fit\.py:\d+\) may change"),
        ("on_train_begin", False, r"Raise \(test_fit\.py:\d+\) changed an object"),
    ],
)
def test_a_number_that_a_callback_sets_is_refused_where_keras_would_read_it(keras, client, hook, eagerly, reason):
    layer = type("Weigh", (keras.layers.Layer,), {"call": weighed, "__module__": __name__})()
    layer.beta = 1.0
    model = keras.Sequential([keras.Input((5,)), layer, keras.layers.Dense(3)])
    model.compile("sgd", model_zoo.crossentropy(keras), run_eagerly=eagerly)

    class Raise(keras.callbacks.Callback):
        def set_beta(self, *_):
            layer.beta = 2.0

    setattr(Raise, hook, Raise.set_beta)
    with remotely(client), pytest.raises(NeedsReplica, match=reason) if reason else contextlib.nullcontext():
        model.fit(X, Y, callbacks=[Raise()], **ARGUMENTS)


@pytest.mark.parametrize(
    ("eagerly", "engine", "inexact"), [(False, "hfdt", ""), (True, "nfdt", ""), (True, "hfdt", "1")]
)
def test_python_of_the_script_in_an_eager_step_trains_where_no_batch_is_divided(
    keras, client, eagerly, engine, inexact
):
    client.hello.engine, client.hello.workers = engine, 2
    model, settings = with_python(keras, eagerly), Settings({"rule": "allreduce", "allow_inexact": inexact})
    with intercepted(lambda *args: fit_remotely(ScriptRun(client, settings, Reporters([])), *args)):
        model.fit(X, Y, **ARGUMENTS)


def test_python_of_the_script_in_an_eager_step_of_a_divided_batch_is_refused(keras, client):
    client.hello.engine, client.hello.workers = "hfdt", 2
    with remotely(client), pytest.raises(NeedsReplica, match=r"runs the Python code of scaled \(test_fit\.py:\d+\)"):
        with_python(keras, True).fit(X, Y, **ARGUMENTS)


def with_python(keras, eagerly):
    """A model with a function of this module in a Lambda layer."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Lambda(scaled), keras.layers.Dense(3)])
    model.compile("sgd", model_zoo.crossentropy(keras), run_eagerly=eagerly)
    return model


def scaled(inputs):
    return inputs * 0.5


def test_a_batch_size_that_a_model_fixes_is_the_one_it_is_built_with(keras, client):
    layers = keras.layers
    rows = layers.Input(batch_shape=(20, 5))
    states = layers.SimpleRNN(2, stateful=True)(layers.Reshape((5, 1))(rows))
    model = keras.Model(rows, layers.Dense(3)(states))
    model.compile("sgd", model_zoo.crossentropy(keras))
    with remotely(client):
        assert len(model.fit(X[:40], Y[:40], **ARGUMENTS).history["loss"]) == ARGUMENTS["epochs"]


def test_a_layer_that_takes_sparse_tensors_only(keras, client):
    tf = importlib.import_module("tensorflow")

    class Projected(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(name="kernel", shape=(5, 4))

        def call(self, inputs):
            return tf.sparse.sparse_dense_matmul(inputs, self.kernel)

    rows = keras.layers.Input((5,), sparse=True)
    model = keras.Model(rows, keras.layers.Dense(3)(Projected()(rows)))
    model.compile("sgd", model_zoo.crossentropy(keras))
    batches = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(X), Y)).batch(8)
    with remotely(client):
        assert len(model.fit(batches, epochs=2, verbose=0).history["loss"]) == 2


def test_a_layer_that_a_callback_freezes_between_eager_steps_is_refused(keras, client):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, name="first"), keras.layers.Dense(3)])
    model.compile("sgd", model_zoo.crossentropy(keras), run_eagerly=True)

    class Freeze(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model.get_layer("first").trainable = False

    with remotely(client), pytest.raises(NeedsReplica, match=r"Freeze \(test_fit\.py:\d+\) changed the list"):
        model.fit(X, Y, callbacks=[Freeze()], **ARGUMENTS)


def test_a_run_starts_again_by_a_refusal_before_its_first_fit_only(client: FakeClient) -> None:
    run = ScriptRun(client, Settings(), Reporters([]))
    for trained in (False, True):
        with pytest.raises(NeedsReplica, match="cannot be pickled") as raised, run.remembering():
            raise NeedsReplica("it cannot be pickled; do not", "it cannot be pickled", trained=False)
        assert raised.value.trained == trained and raised.value.reason == "it cannot be pickled"
        run.count_fit()
