"""Which lines of a script's training step need rows of other ranks; what Keras computes for itself is left out."""

import re

import pytest

from hfdt.exactness.probe_schedule import _padding
from hfdt.exactness.row_dependence import row_dependence

ROWS = 6


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras")


def masked(y, p):
    import tensorflow as tf

    mask = tf.cast(y >= 0, p.dtype)
    return tf.reduce_sum(mask * (y - p) ** 2) / tf.reduce_sum(mask)


def mean(y, p):
    import tensorflow as tf

    return tf.reduce_mean((y - p) ** 2)


def total(y, p):
    import tensorflow as tf

    return tf.reduce_sum((y - p) ** 2) / 32 + 0.1 * tf.reduce_mean(tf.abs(p))


def hardest(y, p):
    import tensorflow as tf

    return tf.reduce_mean(tf.math.top_k(tf.abs(y - p)[:, 0], 2).values)


def found(keras, loss, step=None, metrics=()):
    """The row dependence of a small model on ROWS rows and two ranks."""
    import tensorflow as tf

    from fdt.keras import flavor_of
    from fdt.trainable import Trainable

    class Model(keras.Model):
        train_step = step or keras.Model.train_step

    data = keras.Input((3,))
    model = Model(data, keras.layers.Dense(1)(keras.layers.BatchNormalization()(data)))
    model.compile("adam", loss, metrics=list(metrics))
    x, y = tf.ones((ROWS, 3)), tf.zeros((ROWS, 1))
    model.train_on_batch(x, y) if step is None else model.compute_loss(x, y, model(x))
    return row_dependence(Trainable(flavor_of(model), model), (x, y, None), 2)


@pytest.mark.parametrize(
    ("loss", "operations"), [(masked, ["RealDiv"]), (mean, []), (total, []), (hardest, ["TopKV2"])]
)
def test_what_a_loss_needs_of_all_rows_does_not_depend_on_the_batch(keras, loss, operations):
    line = loss.__code__.co_firstlineno
    lines = found(keras, loss).operations
    assert [each.partition(" at ")[0] for each in lines] == operations
    assert all(line < int(each.rpartition(":")[2]) <= line + 4 for each in lines)


def test_what_keras_computes_over_rows_is_left_out(keras):
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    assert not found(keras, loss, metrics=["accuracy", keras.metrics.AUC()]).operations


def test_keras_own_ratios_over_a_batch_are_not_left_out(keras):
    ratio = r"RealDiv at losses\.py:\d+"
    for loss, metrics in (("Dice", []), ("Tversky", []), ("MeanSquaredError", [keras.losses.dice])):
        lines = found(keras, getattr(keras.losses, loss)(), metrics=metrics).operations
        assert lines and all(re.fullmatch(ratio, each) for each in lines), loss
    assert not found(keras, keras.losses.Dice(axis=(1,))).operations


def test_text_that_is_padded_to_the_longest_row_is_found(keras):
    vectors = {"int": {}, "length": {"output_sequence_length": 4}, "bag": {"output_mode": "multi_hot"}}
    layers = {name: keras.layers.TextVectorization(name=name, **options) for name, options in vectors.items()}
    for layer in layers.values():
        layer.adapt(["a b"])

    def padding(name, **options):
        return _padding(keras.Sequential([layers[name], keras.layers.Embedding(5, 2, **options)]))

    assert [padding(name) for name in layers] == ["int", "", ""]
    assert padding("int", mask_zero=True) == ""


def test_text_is_masked_where_its_own_embedding_masks_and_no_layer_drops_the_mask(keras):
    text = keras.layers.TextVectorization(name="text")
    text.adapt(["a b"])

    def padding(*flags, pooled):
        words = text(given := keras.Input((), dtype="string"))
        embedded = [keras.layers.Embedding(5, 2, mask_zero=flag)(words) for flag in flags]
        other = keras.layers.Embedding(5, 2)(number := keras.Input(()))  # of numbers that are not padded
        outputs = [pooled(each) for each in embedded]
        return _padding(keras.Model([given, number], [*outputs, other]))

    average, highest = keras.layers.GlobalAveragePooling1D(), keras.layers.GlobalMaxPooling1D()
    assert padding(True, True, pooled=average) == ""
    assert padding(True, False, pooled=average) == "text"
    with pytest.warns(UserWarning, match="does not support masking"):
        assert padding(True, pooled=highest) == "text"


def test_a_term_with_the_weight_of_a_variable_is_linear(keras):
    import tensorflow as tf

    weight = keras.Variable(0.0, trainable=False)

    def loss(y, p):
        return tf.reduce_mean((y - p) ** 2) + weight * tf.reduce_sum(p) / (weight + 1.0)

    assert not found(keras, loss).operations


def of_two_batches(y, p):
    import tensorflow as tf

    return tf.reduce_mean(tf.concat([y, p], 0) ** 2)


def test_batches_end_to_end_are_still_divided(keras):
    assert not found(keras, of_two_batches).operations


def test_a_clip_of_the_gradients_is_found_and_a_plain_log_is_named(keras):
    import tensorflow as tf

    def step(self, data):
        x, y, _ = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 1e9)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.metrics[0].update_state(loss)
        return {"loss": loss, "seen": self.metrics[0].result()}

    result = found(keras, "mse", step)
    assert result.operations
    assert all("test_row_dependence.py" in each for each in result.operations)
    assert result.logs.plain == {"loss"}
    assert result.logs.metrics == {"seen": 0}


def test_gradients_that_are_applied_in_a_branch_are_refused_with_the_line(keras):
    import tensorflow as tf

    from hfdt.exactness.gradient_pass import AppliedWithinError, check_applied

    graph = tf.Graph()
    with graph.as_default():
        check_applied(graph)
    with pytest.raises(AppliedWithinError, match=r"test_row_dependence.py:\d+"):
        check_applied(graph)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize(("loss", "operations"), [(masked, ["RealDiv"]), (mean, []), (hardest, ["TopKV2"])])
def test_a_step_on_sparse_or_ragged_rows_is_examined(keras, kind, loss, operations):
    import tensorflow as tf

    from fdt.keras import flavor_of
    from fdt.trainable import Trainable

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, rows):
            return self.dense(rows.to_tensor(shape=[None, 3]) if kind == "ragged" else rows)

        def train_step(self, data):
            rows, labels = data
            with tf.GradientTape() as tape:
                found = loss(labels, self(rows))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(found, weights), weights, strict=True))
            return {"error": found}

    made = {"sparse": tf.sparse.from_dense(tf.eye(ROWS, 3)), "ragged": tf.RaggedTensor.from_row_lengths(
        tf.range(9.0), [1, 3, 2, 0, 2, 1])}  # fmt: skip
    model = Model()
    model.dense.build((None, 3))
    model.compile("sgd", loss)
    found = row_dependence(Trainable(flavor_of(model), model), (made[kind], tf.zeros((ROWS, 1))), 2)
    assert [each.partition(" at ")[0] for each in found.operations] == operations


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize(("over_rows", "operations"), [(True, ["Max"]), (False, [])])
def test_an_operation_between_the_layers_of_a_functional_model_is_the_scripts(library, over_rows, operations):
    import tensorflow as tf

    from fdt.keras import flavor_of
    from fdt.trainable import Trainable

    keras = pytest.importorskip(library)
    ops_max, maximum = (keras.ops.max, keras.ops.maximum) if library == "keras" else (tf.reduce_max, tf.maximum)
    data = keras.Input((3,))
    hidden = keras.layers.Dense(5)(data)
    hidden = hidden / maximum(ops_max(hidden, axis=None if over_rows else 1, keepdims=not over_rows), 4.0)
    model = keras.Model(data, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    x, y = tf.ones((ROWS, 3)), tf.zeros((ROWS, 1))
    model.train_on_batch(x, y)
    lines = row_dependence(Trainable(flavor_of(model), model), (x, y, None), 2).operations
    assert [each.partition(" at ")[0] for each in lines][:1] == operations


def test_a_loop_whose_lists_cannot_be_divided_is_examined_whole():
    """tf_keras's LSTM with recurrent dropout is such a loop; what the model adds to it has no line of the script."""
    import tensorflow as tf

    from fdt.keras import flavor_of
    from fdt.trainable import Trainable

    keras = pytest.importorskip("tf_keras")
    data = keras.Input((5, 4))
    hidden = data + keras.layers.LSTM(4, recurrent_dropout=0.2, return_sequences=True)(data)
    model = keras.Model(data, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    x, y = tf.ones((ROWS, 5, 4)), tf.zeros((ROWS, 5, 1))
    model.train_on_batch(x, y)
    assert not row_dependence(Trainable(flavor_of(model), model), (x, y, None), 2).operations


def test_a_mean_that_a_metric_adds_up_is_unproven_and_a_sum_is_not(keras):
    import tensorflow as tf

    class Added(keras.metrics.Metric):
        def __init__(self, reduced):
            super().__init__()
            self.reduced, self.total = reduced, self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(tf.cast(self.reduced(tf.abs(y_true)), "float32") / 3)

        def result(self):
            return self.total

    metrics = [Added(tf.reduce_mean), Added(tf.reduce_sum), keras.metrics.MeanSquaredError()]
    assert found(keras, mean, metrics=metrics).unproven == {id(metrics[0].total.value)}
