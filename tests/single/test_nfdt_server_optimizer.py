"""Keras's optimizers on the server: equal to Keras alone on the same gradients, on one server and on several."""

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from fdt.algorithm_registry import parse
from fdt.errors import UsageError, UserError
from fdt.keras.variables import tensor_variable
from fdt.network import equal_nodes
from nfdt import algorithms, run_options
from nfdt.model.settings import server_optimizer
from nfdt.model.variables import OwnedVariables
from nfdt.replica.numpy_applier import checked
from nfdt.run_options import declared_options
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.applier import ModelApplier
from nfdt.transport import WorkerGradient
from tests.single.numpy_applier import PlainApplier
from tests.single.simulations import model, simulate

RANDOM = np.random.default_rng(11)
VALUES = [RANDOM.normal(size=shape).astype("float32") for shape in [(3, 2), (2,), (2, 4)]]
GRADIENTS = [[RANDOM.normal(size=v.shape).astype("float32") for v in VALUES] for _ in range(6)]
DECAY = "learning_rate=ExponentialDecay(initial_learning_rate=0.1, decay_steps=2, decay_rate=0.5)"


def decay(o):
    return o.schedules.ExponentialDecay(0.1, 2, 0.5)


OPTIMIZERS = {
    f"sgd, {DECAY}, momentum=0.9, nesterov=True": lambda o: o.SGD(decay(o), momentum=0.9, nesterov=True),
    f"Adam, {DECAY}, amsgrad=True": lambda o: o.Adam(decay(o), amsgrad=True),
    f"adamw, {DECAY}, weight_decay=0.01": lambda o: o.AdamW(decay(o), weight_decay=0.01),
    f"rmsprop, {DECAY}, momentum=0.5": lambda o: o.RMSprop(decay(o), momentum=0.5),
    f"adagrad, {DECAY}": lambda o: o.Adagrad(decay(o)),
    f"lion, {DECAY}, clipnorm=1.0": lambda o: o.Lion(decay(o), clipnorm=1.0),
    f"Nadam({DECAY})": lambda o: o.Nadam(decay(o)),
    f"adafactor, {DECAY}": lambda o: o.Adafactor(decay(o)),  # its factors are of one whole variable
}
BOTH_KERAS = pytest.mark.parametrize("lib", [keras, tf_keras], ids=["keras", "tf_keras"])


def variables(lib, positions=(0, 1, 2)):
    return [(keras.Variable if lib is keras else tf.Variable)(VALUES[i]) for i in positions]


def alone(lib, optimizer):
    made = variables(lib)
    optimizer.build(made)
    step = tf.function(lambda *gradients: optimizer.apply_gradients(list(zip(gradients, made, strict=True))))
    for gradients in GRADIENTS:
        step(*map(tf.constant, gradients))
    return [tensor_variable(v).numpy() for v in made]


def on_server(lib, text, positions=(0, 1, 2), shards=1):
    """The server's weights after each push; a worker pushes what it took off, which is the given gradient."""
    rule = algorithms.make(f"server_optimizer(optimizer={text})")
    made, captured = variables(lib, positions), lib.optimizers.SGD(123.0)
    captured.build(made)
    own = server_optimizer(lib.__name__, rule.optimizer, made, shards)
    core = AlgorithmState(rule, ModelApplier(OwnedVariables(captured, made), own), 2)
    for number, gradients in enumerate(GRADIENTS):
        core.pull(number % 2)
        pushed = [tf.constant(gradients[i]) for i in positions]
        core.push(number % 2, number // 2 + 1, WorkerGradient(pushed, 1, batches=range(3)))
    assert int(captured.iterations) == 3 * len(GRADIENTS), "the captured one counts batches"
    assert int(own.iterations) == len(GRADIENTS)
    return [tensor_variable(v).numpy() for v in made]


@pytest.mark.parametrize("text", OPTIMIZERS)
@BOTH_KERAS
def test_the_server_does_what_keras_does_alone(lib, text):
    expected = alone(lib, OPTIMIZERS[text](lib.optimizers))
    for got, wanted in zip(on_server(lib, text), expected, strict=True):
        npt.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    if lib is tf_keras and "Nadam" in text:
        with pytest.raises(UserError, match="--ps must be 1 with tf_keras's Nadam"):
            on_server(lib, text, (1,), shards=2)
        return
    split = on_server(lib, text, (1,), shards=2) + on_server(lib, text, (0, 2), shards=2)
    for got, wanted in zip(split, [expected[i] for i in (1, 0, 2)], strict=True):
        npt.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@BOTH_KERAS
def test_a_config_of_keras_is_taken(lib):
    config = lib.optimizers.serialize(lib.optimizers.Adam(decay(lib.optimizers), weight_decay=0.1))
    expected = alone(lib, lib.optimizers.Adam(decay(lib.optimizers), weight_decay=0.1))
    for got, wanted in zip(on_server(lib, repr(config)), expected, strict=True):
        npt.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_norm_of_all_gradients_is_taken_on_one_server_and_refused_on_several():
    text = "sgd, learning_rate=0.1, global_clipnorm=0.5"
    expected = alone(keras, keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    for got, wanted in zip(on_server(keras, text), expected, strict=True):
        npt.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="--ps must be 1 with global_clipnorm"):
        on_server(keras, text, (1,), shards=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "must be one of Adadelta, .*SGD.* Received: nope"),
        ("adamw, decay=0.1", "AdamW has no such option; it has learning_rate, weight_decay,.* Received: decay"),
        ("adamw, learning_rate=0", "must have a learning rate above 0. Received: 0"),
        ("adamw, beta_1=x", "AdamW must have valid options. Received: "),
        ("adamw, learning_rate=Nope(a=1)", "AdamW must have valid options. Received: "),
        ("adam, use_ema=True", "the average that use_ema asks for"),
        ("LossScaleOptimizer(inner_optimizer=adam)", "must be one of .* Received: LossScaleOptimizer"),
    ],
)
def test_what_the_server_cannot_use_is_one_line(text, said):
    with pytest.raises(UserError, match=said) as caught:
        on_server(keras, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("r(a=adamw, b=1)", {"a": "adamw", "b": 1}),
        ("r(a='adamw', b=true, c=null)", {"a": "adamw", "b": True, "c": None}),
        ("r(a=Adam(b=[1, x], c=D(e=-1)))", {"a": {"class_name": "Adam", "config": {
            "b": [1, "x"], "c": {"class_name": "D", "config": {"e": -1}}}}}),
        ("r(a={'b': (1, 2)})", {"a": {"b": (1, 2)}}),
    ],
)  # fmt: skip
def test_values_are_literals_names_and_objects(text, parameters):
    assert parse(text) == ("r", parameters)


@pytest.mark.parametrize("text", ["r(a=b.c)", "r(a=F(1))", "r(a=1+x)", "r(a={**b})", "r(**b)"])
def test_another_value_is_one_line(text):
    with pytest.raises(UsageError, match=r"an algorithm must be NAME or NAME\(parameter=value, ...\)"):
        parse(text)


def test_the_papers_optimizers_keep_their_spelling():
    assert [algorithms.make(f"server_optimizer(optimizer={name}, lr=0.1)").optimizer for name in
            ("sgd", "adagrad", "adam", "yogi")] == [None] * 4  # fmt: skip
    made = algorithms.make("server_optimizer(optimizer=adam, learning_rate=0.1)")
    assert made.optimizer == {"class_name": "adam", "config": {"learning_rate": 0.1}}


def test_where_keras_is_not_at_hand_its_optimizers_are_refused():
    rule = algorithms.make("server_optimizer(optimizer=lion)")
    with pytest.raises(ValueError, match="has no Keras optimizer"):
        AlgorithmState(rule, PlainApplier([np.ones(2)]), 1)
    with pytest.raises(UsageError, match="a replicated script needs an algorithm that applies"):
        checked("server_optimizer(optimizer=lion)")


def test_a_simulated_server_trains_as_keras_does():
    """Workers' SGD at rate 1 takes the gradient off, which the server's optimizer gets: Keras's SGD, alone."""
    cluster = equal_nodes().with_workers(1)
    text = "server_optimizer(optimizer=sgd, learning_rate=0.05, momentum=0.9, nesterov=true)"
    got = simulate(cluster, rule=text, source=model(keras.optimizers.SGD(1.0))).epochs(2).weights
    script = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    for a, b in zip(got, simulate(cluster, source=model(script)).epochs(2).weights, strict=True):
        npt.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def given(**options):
    names = ("asynchronous", "sync", "rule", *(declared.name for declared in run_options.DECLARED))
    return dict.fromkeys(names) | options


def test_an_algorithms_file_declares_its_options(tmp_path):
    (tmp_path / "mine.py").write_text(
        'OPTIONS = {"--a-b": ("ab", "X", "text.")}\ndef rule(ab: float | None = 1.0): ...'
    )
    (tmp_path / "other.py").write_text("def rule(): ...")
    (declared,) = declared_options(tmp_path)
    assert (declared.name, declared.rule, declared.parameter, declared.kind) == ("a_b", "mine", "ab", "float")
    text = run_options.checked_algorithm(given(rule="server_optimizer", server_optimizer="adamw", server_lr=0.1))
    made = algorithms.make(text)
    assert made.optimizer == {"class_name": "adamw", "config": {"learning_rate": 0.1}}
    assert run_options.checked_algorithm(given()) is None
    with pytest.raises(UsageError, match="--local-steps needs --algorithm server_optimizer. Received: --local-steps"):
        run_options.checked_algorithm(given(local_steps=3, rule="asgd"))
