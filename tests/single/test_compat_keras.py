"""What this project relies on in Keras 3 and tf_keras beside their public interfaces: one case for each hook."""

import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt import compat
from fdt.compat import keras3
from fdt.compat import tf_keras as keras2
from tests.single.hook_calls import assert_called, calls

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
X, Y = np.ones((4, 3, 2), "float32"), np.ones((4, 3, 1), "float32")


def model(library, loss="mse", **words):
    inputs = library.Input((3, 2))
    hidden = library.layers.BatchNormalization()(library.layers.Masking()(inputs))
    made = library.Model(inputs, library.layers.Dense(1)(library.layers.Dropout(0.5)(hidden)))
    made.compile("sgd", loss, metrics=["mse"], run_eagerly=True, **words)
    return made


def fit(library, **words):
    return lambda: model(library, **words).fit(X, Y, verbose=0)


def one_batch(library):
    return lambda: model(library).train_on_batch(X, Y)


# (owner, attribute, what calls it, a function of its arguments)
BOTH = [
    case
    for name, library in LIBRARIES.items()
    for case in [
        (compat.of(name).Trainer, "fit", fit(library), lambda model, x, y, verbose: x is X),
        (compat.of(name).Trainer, "train_on_batch", one_batch(library), lambda model, x, y: x is X),
        (compat.of(name).Metric, "__init__", one_batch(library), lambda metric, *args, **kwargs: True),
        (compat.of(name).Mean, "update_state", one_batch(library), lambda mean, values, sample_weight=None: True),
        (library.layers.Layer, "__call__", one_batch(library), lambda layer, *args, **kwargs: True),
        (library.losses.Loss, "__call__", one_batch(library), lambda loss, y, predicted, sample_weight=None: True),
        (library.callbacks.CallbackList, "on_epoch_end", fit(library), lambda callbacks, epoch, logs: epoch == 0),
    ]
]
CALLED = [
    *BOTH,
    # Keras 3
    (keras3.BaseOptimizer, "apply", fit(keras), lambda optimizer, gradients, variables=None: len(list(gradients)) == 4),
    (
        keras3.LossScaleOptimizer,
        "apply",
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()).apply(
            [tf.ones(2)], [keras.Variable([1, 2.0])]
        ),
        lambda optimizer, gradients, variables=None: len(variables) == 1,
    ),
    (keras3.BaseOptimizer, "_get_current_learning_rate", fit(keras), lambda optimizer: True),
    (keras3.BaseOptimizer, "finalize_variable_values", fit(keras), lambda optimizer, variables: True),
    (
        keras3.losses,
        "apply_mask",
        fit(keras),
        lambda weight, mask, dtype, reduction: mask is not None and reduction == "sum_over_batch_size",
    ),
    (
        keras3.losses,
        "reduce_values",
        fit(keras),
        lambda values, sample_weight=None, reduction="": reduction == "sum_over_batch_size",
    ),
    (keras.layers.BatchNormalization, "_moments", one_batch(keras), lambda layer, inputs, mask: mask is not None),
    (keras3.random, "dropout", one_batch(keras), lambda inputs, *args, **kwargs: True),
    (keras3.random, "normal", lambda: keras.random.normal([2]), lambda shape, mean=0.0, *args, **kwargs: True),
    (
        keras3.random,
        "truncated_normal",
        lambda: keras.random.truncated_normal([2]),
        lambda shape, mean=0.0, *args, **kwargs: True,
    ),
    (
        keras3.random,
        "uniform",
        lambda: keras.random.uniform([2]),
        lambda shape, low=0, high=None, *args, **kwargs: True,
    ),
    # tf_keras
    (
        keras2.Optimizer,
        "apply_gradients",
        fit(tf_keras),
        lambda optimizer, pairs, *args, **kwargs: True,
    ),
    (
        keras2.losses,
        "apply_valid_mask",
        fit(tf_keras),
        lambda losses, weight, mask, reduction: mask is not None and reduction == "sum_over_batch_size",
    ),
    (
        keras2.losses,
        "reduce_weighted_loss",
        fit(tf_keras),
        lambda losses, reduction="": reduction == "sum_over_batch_size",
    ),
    (
        tf_keras.layers.BatchNormalization,
        "_moments",
        one_batch(tf_keras),
        lambda layer, inputs, axes, keep_dims, mask=None: not keep_dims,
    ),
    (
        tf_keras.layers.BatchNormalization,
        "_assign_moving_average",
        one_batch(tf_keras),
        lambda layer, variable, value, momentum, inputs_size: True,
    ),
]


@pytest.mark.parametrize(
    ("owner", "name", "act", "accepts"),
    CALLED,
    ids=[f"{c[0].__module__ if isinstance(c[0], type) else ''}{c[0].__name__}.{c[1]}" for c in CALLED],
)
def test_called(owner, name, act, accepts):
    assert_called(owner, name, act, accepts)


# -- the model of a job (fdt/keras, hfdt/worker/sharded_model.py) ------------------------------------------------------
@pytest.mark.parametrize("flavor", LIBRARIES)
@pytest.mark.parametrize(
    "method", ["train_step", "test_step", "reset_metrics", "make_train_function", "evaluate", "results"]
)
def test_fit_calls_a_models_own_method(flavor, method):
    results = {"keras": "_get_metrics_result_or_logs", "tf_keras": "_validate_and_get_metrics_result"}
    trained, name = model(LIBRARIES[flavor]), results[flavor] if method == "results" else method
    assert calls(trained, name, lambda: trained.fit(X, Y, validation_data=(X, Y), verbose=0))


@pytest.mark.parametrize("flavor", LIBRARIES)
def test_a_model_shows_its_layers_and_optimizer(flavor):
    made = model(LIBRARIES[flavor])
    made.fit(X, Y, verbose=0)
    layers = list(made._flatten_layers(include_self=False, recursive=True))
    variables = "_non_trainable_variables" if flavor == "keras" else "_non_trainable_weights"
    assert len(layers) == 5 and all(variables in vars(layer) for layer in layers)
    assert made.train_function is not None and made.test_function is None


def test_keras_3_shows_what_a_compiled_model_has():
    made = model(keras)
    made._symbolic_build(data_batch=(tf.TensorSpec([2, 3, 2]), tf.TensorSpec([2, 3]), None))
    assert made._compile_metrics.built and made._compile_loss.built and made.optimizer.built
    assert made._loss_tracker in made.metrics and made._distribute_strategy is None
    assert made.optimizer._trainable_variables == made.trainable_variables
    assert [len(layer._seed_generators) for layer in made._flatten_layers()] == [0, 0, 0, 0, 1, 0]
    assert keras3.pythonify_logs({"loss": np.float32(1.0)}) == {"loss": 1.0}


def test_keras_3_wraps_and_tracks_what_a_layer_has():
    layer = keras.layers.Layer()
    layer.listed, layer.named, layer.chosen = [1], {"a": 1}, {1}
    kinds = keras3.tracking.TrackedList, keras3.tracking.TrackedDict, keras3.tracking.TrackedSet
    assert tuple(map(type, (layer.listed, layer.named, layer.chosen))) == kinds
    assert isinstance(layer._tracker, keras3.tracking.Tracker) and set(layer._tracker.stored_ids) == set(
        layer._tracker.config
    )
    assert isinstance(layer, keras3.KerasSaveable) and isinstance(layer, keras3.Operation)
    assert keras3.DynamicBackend("tensorflow")._backend == "tensorflow"


def test_keras_3_keeps_one_generator_of_unseeded_operations():
    keras.utils.set_random_seed(1)
    assert keras3.seed_generator() is None
    keras.random.normal([2])
    assert keras3.seed_generator() is keras3.global_seed_generator()
    assert isinstance(keras3.seed_generator().state, keras.Variable)


def test_a_variable_of_keras_3_has_a_variable():
    variable = keras.Variable([1.0])
    assert isinstance(variable._value, tf.Variable) and variable.value._unique_id and variable._autocast


def test_tf_keras_shows_what_a_compiled_model_has():
    made = model(tf_keras)
    made.fit(X, Y, verbose=0)
    assert made._is_compiled and int(made._steps_per_execution) == 1
    made._configure_steps_per_execution(2)
    assert int(made._steps_per_execution) == 2
    assert isinstance(made, keras2.functional.Functional) and "_tensor_usage_count" in vars(made)
    found = made.layers[1]._inbound_nodes[0]
    assert (
        isinstance(found, keras2.node.Node)
        and {"flat_input_ids", "_keras_inputs_ids_and_indices"} <= vars(found).keys()
    )
    assert keras2.tf_utils.sync_to_numpy_or_python_type({"loss": tf.constant(1.0)}) == {"loss": 1.0}
    assert isinstance(
        tf_keras.backend._GRAPH_LEARNING_PHASES if False else keras2.ContextValueCache(int), dict | object
    )


# -- the batches of fit (client_shim/capture) --------------------------------------------------------------------------
@pytest.mark.parametrize("flavor", LIBRARIES)
def test_arrays_are_split_and_weighted_by_functions(flavor):
    private = compat.of(flavor)
    train, validation = private.train_validation_split((X, Y, None), validation_split=0.25)
    assert (len(train[0]), len(validation[0]), train[2]) == (3, 1, None)
    weights = private.make_class_weight_map_fn({0: 1.0, 1: 3.0})(tf.ones([2, 2]), tf.constant([[0], [1]]))[2]
    assert weights.numpy().ravel().tolist() == [1.0, 3.0]


def test_keras_3_takes_arrays_and_loops_over_them():
    assert keras3.array_data_adapter.can_convert_arrays((X, Y, None)) and not keras3.is_tf_dataset(X)
    assert keras3.is_tf_dataset(tf.data.Dataset.range(2)) and not keras3.is_grain_dataset(X)
    adapter = keras3.array_data_adapter.ArrayDataAdapter(X, Y, sample_weight=None, class_weight=None)
    sliceable = keras3.array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    assert len(keras3.tree.lists_to_tuples(sliceable)) == 2
    loop = keras3.TFEpochIterator(x=X, y=Y, batch_size=2, distribute_strategy=tf.distribute.get_strategy())
    loop.reset()
    with loop.catch_stop_iteration():
        assert len([next(iterator) for _, _, iterator in loop]) == loop.num_batches == 2
    assert loop._distributed_dataset.element_spec[0].shape[1:] == [3, 2] and loop.data_adapter
    assert hasattr(loop, "_current_iterator")


def test_tf_keras_takes_arrays_and_loops_over_them():
    adapters = keras2.data_adapter
    assert adapters.select_data_adapter(X, Y) is adapters.TensorLikeDataAdapter
    x, y, _ = adapters._process_tensorlike((X, Y, None))
    weights, _, _ = keras2.training_utils.handle_partial_sample_weights(y, None, None, check_all_flat=True)
    packed = adapters.pack_x_y_sample_weight(x, y, weights)
    adapters._check_data_cardinality(packed)
    assert len(packed) == 2 and adapters.CompositeTensorDataAdapter and adapters.GenericArrayLikeDataAdapter
    loop = adapters.DataHandler(X, Y, batch_size=2, model=model(tf_keras))
    for _, iterator in loop.enumerate_epochs():
        with loop.catch_stop_iteration():
            assert len([next(iterator) for _ in loop.steps()]) == loop.inferred_steps == 2
    assert type(loop._adapter).__name__ == "TensorLikeDataAdapter" and len(loop._dataset.element_spec) == 2


# -- what is patched when it is imported -------------------------------------------------------------------------------
PATCHED = {
    **{module: (cls, "fit") for module, cls in compat.TRAINERS.items()},
    **{module: (cls, name) for module, (cls, name) in compat.OPTIMIZERS.items()},
    **{module: ("", name) for module, name in compat.DOWNLOADS.items()},
}


@pytest.mark.parametrize("module", PATCHED)
def test_a_module_defines_what_is_patched_after_its_import(module):
    found, (cls, name) = importlib.import_module(module), PATCHED[module]
    assert callable(getattr(getattr(found, cls) if cls else found, name))
    assert not cls or getattr(found, cls).__module__ == module


@pytest.mark.parametrize("module", compat.OTHER_BACKENDS)
def test_a_trainer_of_another_backend_has_its_name(module):
    path = Path(keras.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    assert re.search(rf"^class {compat.OTHER_BACKENDS[module][0]}\(", path.read_text(), re.MULTILINE)


def test_tf_keras_has_the_classes_that_are_pickled():
    kept = tf.Variable(1.0)
    assert keras2.autocast_variable.create_autocast_variable(kept)._variable is kept
    assert keras2.ContextValueCache(int).default_factory is int
    layer = keras2.tf_op_layer.TFOpLambda(tf.abs)
    assert layer.function is tf.abs and {"call", "function", "symbol", "_call_spec"} <= vars(layer).keys()
