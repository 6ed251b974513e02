"""Whether changes of a metric's state add up over workers: sums are trained, and what is none is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from client_shim.replica.metric_state import Metrics
from client_shim.summed_state import SummedState
from fdt.errors import UserError
from fdt.keras import named
from fdt.keras.variables import tensor_variable
from fdt.trainable import Trainable
from nfdt import algorithms
from nfdt.transport import Weights
from nfdt.worker.step import GradientStep, ownerships

FLAVORS = {"keras": keras, "tf_keras": tf_keras}
BATCH = (tf.constant([[1.0, -2.0], [0.5, 4.0], [3.0, 1.0], [2.0, 2.0]]), tf.constant([[1.0], [0.0], [1.0], [1.0]]))


def metric_of(update, start=0.0, dtype="float32", shape=(), flavor="keras"):
    """A metric of the script's own with the states `s` and `n`, updated by `update(metric, s, n, y)`."""

    class Own(FLAVORS[flavor].metrics.Metric):
        def __init__(self):
            super().__init__(name="own")
            self.s = self.add_weight(name="s", shape=shape, initializer="zeros", dtype=dtype)
            self.n = self.add_weight(name="n", shape=(), initializer="zeros", dtype="float32")
            self.reset_state()

        def update_state(self, y_true, y_pred=None, sample_weight=None):
            update(self, tensor_variable(self.s), tensor_variable(self.n), tf.cast(y_true, tf.float32))

        def reset_state(self):
            self.s.assign(tf.fill(shape, tf.cast(start, dtype)))
            self.n.assign(0.0)

        def result(self):
            return tf.cast(tf.reduce_sum(tf.cast(self.s, tf.float32)), tf.float32)

    return Own()


def refused(metric, batches=(BATCH[1],), same=True):
    state = SummedState(metric)
    for batch in batches:
        before = [v.numpy() for v in metric.variables]
        state.update(lambda batch=batch: metric.update_state(batch))
        after = [v.numpy() for v in metric.variables]
        for variable, value in zip(metric.variables, before, strict=True):
            variable.assign(value)
        metric.update_state(batch)
        if same:
            np.testing.assert_array_equal(metric.variables[0].numpy(), after[0], "as by one update")
    try:
        state.check()
    except UserError as error:
        assert "'own', Own (test_summed_state.py:" in str(error)
        return True
    return False


def running_mean(metric, s, n, y):
    n.assign_add(1.0)
    s.assign(s + (tf.reduce_mean(y) - s) / n)


def compensated(metric, s, n, y):
    """Kahan's sum of s, with its compensation n."""
    added = tf.reduce_sum(y) / 3 - n
    total = s + added
    n.assign((total - s) - added)
    s.assign(total)


SUMS = {
    "compensated": (compensated, {"start": 0.1}),
    "compensated, of whole numbers at first": (lambda m, s, n, y: compensated(m, s, n, y * 3), {}),
    "sum": (lambda m, s, n, y: s.assign_add(tf.reduce_sum(y)), {}),
    "rounded sum": (lambda m, s, n, y: s.assign(s + tf.reduce_sum(y) / 3), {"start": 1.0}),
    "sum and count": (lambda m, s, n, y: (s.assign_add(tf.reduce_mean(y)), n.assign_add(1.0)), {}),
    "count that is 0": (lambda m, s, n, y: s.assign_add(tf.reduce_sum(tf.cast(y > 9, tf.float32))), {}),
    "whole numbers": (lambda m, s, n, y: s.assign_add(tf.reduce_sum(tf.cast(y, tf.int32))), {"dtype": "int32"}),
    "half": (lambda m, s, n, y: s.assign_add(tf.cast(tf.reduce_mean(y), tf.float16)), {"dtype": "float16"}),
    "matrix": (
        lambda m, s, n, y: s.assign_add(tf.math.confusion_matrix(y[:, 0], y[:, 0], 2, dtype=tf.float32)),
        {"shape": (2, 2)},
    ),
    "flag": (lambda m, s, n, y: s.assign(s | tf.reduce_any(y > 0)), {"dtype": "bool"}),
    "flag that is false": (lambda m, s, n, y: s.assign(s | tf.reduce_any(y > 9)), {"dtype": "bool"}),
    "true flag that is read": (lambda m, s, n, y: n.assign_add(tf.where(s, 1.0, 2.0)), {"dtype": "bool", "start": 1}),
    "threshold that is read": (
        lambda m, s, n, y: n.assign_add(tf.reduce_sum(tf.cast(y > s, tf.float32))),
        {"start": 9.0},
    ),
    "NaN": (lambda m, s, n, y: s.assign_add(tf.reduce_sum(y) * np.nan), {}),
}
OTHERS = {
    "maximum": (lambda m, s, n, y: s.assign(tf.maximum(s, tf.reduce_max(y))), {}),
    "maximum from -inf": (lambda m, s, n, y: s.assign(tf.maximum(s, tf.reduce_max(y))), {"start": -np.inf}),
    "minimum from 1e9": (lambda m, s, n, y: s.assign(tf.minimum(s, tf.reduce_min(y))), {"start": 1e9}),
    "maximum of counts": (
        lambda m, s, n, y: s.assign(tf.maximum(s, tf.reduce_sum(tf.cast(y, tf.int32)))),
        {"dtype": "int32"},
    ),
    "maximum beside a large sum": (
        lambda m, s, n, y: (n.assign_add(1e6), s.assign(tf.maximum(s, tf.reduce_max(y) * 1e-3))),
        {},
    ),
    "last value": (lambda m, s, n, y: s.assign(tf.reduce_mean(y)), {}),
    "moving average": (lambda m, s, n, y: s.assign(0.9999 * s + 0.0001 * tf.reduce_mean(y)), {}),
    "running mean": (running_mean, {}),
    "product": (lambda m, s, n, y: s.assign(s * 2), {"start": 1.0}),
    "all": (lambda m, s, n, y: s.assign(s & tf.reduce_all(y < 9)), {"dtype": "bool", "start": 1}),
    "last flag": (lambda m, s, n, y: s.assign(tf.reduce_all(y > 9)), {"dtype": "bool"}),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_not_refused(name):
    update, how = SUMS[name]
    assert not refused(metric_of(update, **how))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_sum_is_refused(name):
    update, how = OTHERS[name]
    assert refused(metric_of(update, **how))


def test_a_metric_that_draws_random_numbers_is_not_refused():
    assert not refused(metric_of(lambda m, s, n, y: s.assign_add(tf.random.uniform(()))), same=False)


LATE = {  # of the sum over a batch, which is 0 at first
    "maximum": (lambda m, s, n, y: s.assign(tf.maximum(s, tf.reduce_sum(y))), {}),
    "maximum of counts": (
        lambda m, s, n, y: s.assign(tf.maximum(s, tf.reduce_sum(tf.cast(y, tf.int32)))),
        {"dtype": "int32"},
    ),
    "last value": (lambda m, s, n, y: s.assign(tf.reduce_sum(y)), {}),
    "maximum beside a count": (
        lambda m, s, n, y: (n.assign_add(1.0), s.assign(tf.maximum(s, tf.reduce_sum(y)))),
        {},
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_a_variable_is_examined_when_a_batch_first_changes_it(name):
    update, how = LATE[name]
    assert not refused(metric_of(update, **how), [BATCH[1] * 0, BATCH[1] * 0])  # 0 is right, whatever adds up
    assert refused(metric_of(update, **how), [BATCH[1] * 0, BATCH[1] * 0, BATCH[1]])


def test_a_compensated_sum_is_not_refused_in_any_later_update():
    assert not refused(metric_of(compensated), [BATCH[1] * number for number in (3, 0, 1, 0.1, 7, 1e4, 1e-3)])


def test_a_batch_that_gives_no_finite_number_is_not_the_one_that_decides():
    assert refused(metric_of(OTHERS["last value"][0]), [BATCH[1] * np.nan, BATCH[1]])
    for number in (np.nan, np.inf):
        assert not refused(metric_of(SUMS["sum"][0]), [BATCH[1] * number, BATCH[1], BATCH[1]])


STEPS = {"step": ("asgd", 1), "local": ("server_optimizer(local_steps=3)", 3), "micro": ("ddc_asgd(micro_steps=2)", 1)}


def states_after_a_push(metric, kind="step", flavor="keras", **compiled):
    api = FLAVORS[flavor]
    random = [api.layers.BatchNormalization(), api.layers.Dropout(0.5)] if kind != "micro" else []
    model = api.Sequential([api.layers.InputLayer((2,)), *random, api.layers.Dense(1)])
    model.compile(api.optimizers.SGD(0.1), "mse", metrics=[metric, "mae"], **compiled)
    model.optimizer.build(model.trainable_variables)
    named(flavor).build(model, (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)), None))
    trainable, (rule, count) = Trainable(named(flavor), model), STEPS[kind]
    model.reset_metrics()
    owned, whole = ownerships(trainable, 1), GradientStep(trainable)
    states, step = whole.metric_states, whole.of(algorithms.make(rule))
    step.trace(tuple(tf.TensorSpec(t.shape, t.dtype) for t in BATCH), owned)
    part = owned[0].part
    variables = [*part.trainable, *part.others, *part.scalars]
    pulled = Weights([*range(len(variables))], [tensor_variable(v).read_value() for v in variables])
    step.run(0, [BATCH] * count, owned, [pulled])
    return states


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [("step", {}), ("local", {}), ("micro", {}), ("step", {"run_eagerly": True}), ("step", {"jit_compile": True})],
    ids=["step", "local", "micro", "eager", "xla"],
)
def test_every_kind_of_step_examines_the_scripts_own_metrics(kind, compiled, flavor):
    (state,) = states_after_a_push(metric_of(OTHERS["maximum"][0], flavor=flavor), kind, flavor, **compiled)
    with pytest.raises(UserError, match="'own'"):
        state.check()
    (state,) = states_after_a_push(metric_of(SUMS["sum and count"][0], flavor=flavor), kind, flavor, **compiled)
    state.check()


def subclasses(api):
    class OfBatches(api.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(tf.abs(y_true - y_pred), sample_weight)

    class Area(api.metrics.AUC):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_true, tf.sigmoid(y_pred), sample_weight)

    class Holder(api.metrics.Metric):
        def __init__(self):
            super().__init__(name="holder")
            self.inner = api.metrics.Precision()

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.inner.update_state(y_true, tf.sigmoid(y_pred))

        def result(self):
            return self.inner.result()

        def reset_state(self):
            self.inner.reset_state()

    return {"mean": OfBatches, "area": Area, "holder": Holder}


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("name", ["mean", "area", "holder"])
def test_subclasses_of_keras_own_metrics_are_not_refused(name, flavor):
    (state,) = states_after_a_push(subclasses(FLAVORS[flavor])[name](), flavor=flavor)
    state.check()
    assert int(state._verdict), "it was examined"


def test_a_model_without_metrics_of_the_script_is_not_examined():
    assert states_after_a_push(keras.metrics.MeanAbsoluteError()) == []


@pytest.mark.parametrize("several", [True, False])
def test_in_a_replicated_script_it_is_refused_where_the_script_reads_it(several, monkeypatch):
    mine = [True]
    metrics = Metrics(lambda t, n: t, lambda: mine[0], lambda: mine[0], lambda: False, lambda: True, several)
    original = keras.metrics.Metric.__init__
    monkeypatch.setattr(keras.metrics.Metric, "__init__", lambda m, *a, **k: metrics.made(original, m, *a, **k))
    for update, how, raises in ((*OTHERS["maximum"], several), (*SUMS["sum"], False)):
        metric = metric_of(update, **how)
        metric.update_state(BATCH[1])
        if raises:
            with pytest.raises(UserError, match="'own'"):
                metric.result()
        else:
            assert float(metric.result()) == float(tensor_variable(metric.s))
