"""A rebuilt program trains like the model from which it was made."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from client_shim.capture.program import capture_program, digest_of
from fdt.blobs import LocalBlobs
from fdt.errors import CaptureError
from fdt.job import JobSpec, State
from fdt.keras import flavor_of, named
from fdt.keras.variables import build_optimizer
from fdt.rpc import job_pb2
from fdt.trainable import Trainable, build, read, write
from tests.single import model_zoo

pytestmark = pytest.mark.filterwarnings("default")
SEEDED_AS_IT_TRACES = {("tf_keras", "augmented")}  # tf_keras counts in Python how often a layer drew a seed


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path)


def history(model: Any, x: Any, y: Any) -> dict[str, list[float]]:
    tf.random.set_seed(7)  # tf_keras draws noise from the global generator
    found: dict[str, list[float]] = model.fit(x, y, batch_size=20, shuffle=False, verbose=0).history
    return found


def state_of(trainable: Trainable, blobs: LocalBlobs) -> State:
    return State(blobs.put_arrays(trainable.model_arrays()), blobs.put_arrays(trainable.optimizer_arrays()))


@pytest.mark.parametrize(("name", "make"), model_zoo.CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_rebuilt_model_trains_the_same(name: str, make: Any, blobs: LocalBlobs) -> None:
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(3)
    model, x, y = make(keras)
    flavor = flavor_of(model)
    if not flavor.built(model):
        flavor.build(model, tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), (x, y)))
    program, captured = capture_program(flavor, model, blobs)
    state = state_of(captured, blobs)
    expected = history(model, x, y)
    again, _ = capture_program(flavor, model, blobs)
    assert again.digest == program.digest or (name, make.__name__) in SEEDED_AS_IT_TRACES

    there = build(program, blobs)
    there.load(state, blobs)
    assert there.model is not model and history(there.model, x, y) == expected
    for group in ("model_arrays", "optimizer_arrays"):
        here = getattr(captured, group)()
        assert all(np.array_equal(a, b) for a, b in zip(here, getattr(there, group)(), strict=True))


SCRIPT = """
import helper, keras, tensorflow as tf

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = helper.Scaled(3)

    def call(self, x) -> tf.Tensor:
        return self.out(x)

    def train_step(self, data):
        tracker.update_state(RATE)
        return {**super().train_step(data), "rate": tracker.result()}

RATE = 0.25
tracker = keras.metrics.Mean()
model = Net()
model.compile("sgd", helper.loss)
model.fit(tf.ones((8, 5)), tf.ones((8, 3)), batch_size=4)
"""
HELPER = """
import keras

class Scaled(keras.layers.Dense):
    def call(self, x):
        return super().call(x) * FACTOR

FACTOR = 2.0

def loss(y, p):
    return keras.losses.mean_squared_error(y, p)
"""
CAPTURE = """
import sys
from types import SimpleNamespace
from client_shim.state import ScriptRun
from client_shim.fit import fit_remotely
from client_shim.imports import intercepted
from client_shim.script import run_script
from client_shim.state import Settings
from fdt.blobs import LocalBlobs
from fdt.report import Reporters
from pathlib import Path

folder = Path(sys.argv[1])
blobs = LocalBlobs(folder)
blobs.drop = lambda ref: None
client = SimpleNamespace(blobs=blobs, hello=SimpleNamespace(engine="nfdt", workers=1))
keep = lambda fit: (folder / "job").write_bytes(fit.job.to_proto().SerializeToString())
run = ScriptRun(client, Settings(), Reporters([]), instead=keep)
with intercepted(lambda *args: fit_remotely(run, *args)):
    sys.exit(run_script(sys.argv[2], []))
"""


def test_a_program_needs_neither_script_nor_modules_beside_it(blobs: LocalBlobs, tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "script.py").write_text(SCRIPT)
    (scripts / "helper.py").write_text(HELPER)
    command = [sys.executable, "-c", CAPTURE, str(tmp_path), str(scripts / "script.py")]
    subprocess.run(command, check=True, timeout=100, cwd=Path(__file__).parents[2])
    job = JobSpec.from_proto(job_pb2.JobSpec.FromString((tmp_path / "job").read_bytes()))
    assert "helper" not in sys.modules and job.program.objects.nbytes < 100_000
    trainable = build(job.program, blobs)
    trainable.load(job.state, blobs)
    logs = trainable.model.fit(tf.ones((8, 5)), tf.ones((8, 3)), batch_size=4, verbose=0).history
    assert logs["rate"] == [0.25] and np.isfinite(logs["loss"][0])


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_variables_that_the_code_refers_to_are_a_part_of_the_state(name: str, blobs: LocalBlobs) -> None:
    keras = importlib.import_module(name)
    weight, generator = tf.Variable(0.0), tf.random.Generator.from_seed(1)

    def loss(true: Any, predicted: Any) -> Any:
        noise = 0.0 * tf.reduce_sum(generator.normal([1]))
        return tf.reduce_mean((true - predicted) ** 2, -1) + weight + noise

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    flavor = flavor_of(model)
    flavor.build(model, (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])))
    program, captured = capture_program(flavor, model, blobs)
    assert [v is weight for v in captured.script_variables] == [True]
    weight.assign(7.0)
    again, _ = capture_program(flavor, model, blobs)
    assert again.digest == program.digest
    there = build(program, blobs)
    there.load(state_of(captured, blobs), blobs)
    assert float(there.script_variables[0]) == 7.0
    assert there.model.evaluate(tf.zeros((2, 3)), tf.zeros((2, 1)), verbose=0) == pytest.approx(7.0)


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@pytest.mark.parametrize("rows", [(None, 4), (4, None), (4, 4)])
def test_a_model_is_built_where_some_of_its_data_have_a_static_batch(name: str, rows: tuple[int | None, ...]) -> None:
    keras = importlib.import_module(name)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    named(name).build(model, (tf.TensorSpec([rows[0], 3]), tf.TensorSpec([rows[1], 1])))
    assert [tuple(weight.shape) for weight in model.weights] == [(3, 1), (1,)]


def test_the_tensorflow_variable_of_a_weight_is_still_that_of_the_weight(blobs: LocalBlobs) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    kernel = model.layers[0].kernel.value
    model.compile("sgd", lambda true, predicted: tf.reduce_mean(predicted, -1) + tf.reduce_sum(kernel**2))
    flavor = named("keras")
    flavor.build(model, (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])))
    program, captured = capture_program(flavor, model, blobs)
    assert not captured.script_variables
    there = build(program, blobs).model
    there.layers[0].kernel.assign([[1.0], [2.0], [3.0]])
    assert float(there.loss(tf.zeros((1, 1)), tf.zeros((1, 1)))[0]) == 14.0


def test_a_state_that_does_not_fit_names_the_variable() -> None:
    import keras

    model, _, _ = model_zoo.dense(keras)
    flavor = named("keras")
    arrays = read(flavor.trainable(model))
    with pytest.raises(CaptureError, match=r"\(2, 2\), .*kernel has \(8, 3\)"):
        write(flavor.trainable(model), [*arrays[:2], np.zeros((2, 2)), arrays[3]])
    with pytest.raises(CaptureError, match="Received: 3 for 4"):
        write(flavor.trainable(model), arrays[:3])


def test_groups_share_no_variable() -> None:
    import keras

    model, _, _ = model_zoo.augmented(keras)
    flavor = named("keras")
    model.optimizer.build(model.trainable_variables)
    trainable = Trainable(flavor, model)
    groups = [trainable.trainable, trainable.non_trainable, trainable.optimizer, trainable.metrics]
    ids = [id(v) for group in groups for v in group]
    assert len(ids) == len(set(ids))
    assert trainable.seeds and {id(v) for v in trainable.seeds} <= {id(v) for v in trainable.non_trainable}


def test_only_keras_models_have_a_flavor() -> None:
    with pytest.raises(CaptureError, match="Received: dict"):
        flavor_of({})
    with pytest.raises(ValueError, match="Received: 'torch'"):
        named("torch")


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Nadam", "Adafactor", "Lion", "Ftrl", "ScheduleFreeAdamW"])
def test_an_optimizer_is_built_as_the_first_step_of_keras_builds_it(name: str, eager: bool) -> None:
    """Its variables have the same names, and values that `build` assigns, ScheduleFreeAdamW's, where they have them."""
    import keras

    kind = getattr(keras.optimizers, name, None)
    if kind is None:
        pytest.skip(f"this Keras has no {name}")
    x, y = np.arange(24.0, dtype=np.float32).reshape(8, 3), np.ones((8, 1), np.float32)

    def trained(build: Any) -> tuple[list[str], list[Any]]:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "tanh", name="a")], name="m")
        model.set_weights([np.full((3, 1), 0.1), np.ones(1)])
        model.compile(kind(0.05, name="o"), "mse", run_eagerly=eager)
        build(model)
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        paths = [re.sub(r"/variable_\d+$", "/variable", v.path) for v in model.optimizer.variables]  # Keras counts them
        return paths, model.get_weights()

    def build_later(model: Any) -> None:
        build = lambda: build_optimizer(model.optimizer, model.trainable_variables)  # noqa: E731
        (build if eager else tf.function(build, autograph=False))()

    paths, weights = trained(lambda model: None)
    spec = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)), None
    for build_now in (lambda model: named("keras").build(model, spec), build_later):
        ours, trained_weights = trained(build_now)
        assert ours == paths
        for array, want in zip(trained_weights, weights, strict=True):
            np.testing.assert_allclose(array, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_weights_that_are_read_from_a_file_leave_the_program_as_it_is(name: str, tmp_path: Path) -> None:
    """A callback may do so in on_train_begin, as BackupAndRestore does where a run is resumed."""
    keras = importlib.import_module(name)
    layers = [keras.layers.EinsumDense("ab,bc->ac", output_shape=2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    model.compile("sgd", "mse")
    flavor = flavor_of(model)
    flavor.build(model, (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])))
    before = digest_of(flavor, model)
    model.save_weights(tmp_path / "saved.weights.h5")
    model.load_weights(tmp_path / "saved.weights.h5")
    if name == "tf_keras":  # its BackupAndRestore reads a checkpoint of TensorFlow
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.read(checkpoint.write(tmp_path / "checkpoint"))
    assert digest_of(flavor, model) == before


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_layers_without_an_input_are_built_for_the_rows_that_keras_traces(name: str) -> None:
    keras = importlib.import_module(name)
    for rows in (8, None):
        model = keras.Sequential([keras.layers.LSTM(2, stateful=rows is not None), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        flavor_of(model).build(model, (tf.TensorSpec([rows, 5, 3]), tf.TensorSpec([rows, 1])))
        assert model.input_shape == (rows, 5, 3)
        assert rows is None or tuple(model.layers[0].states[0].shape) == (rows, 2)
