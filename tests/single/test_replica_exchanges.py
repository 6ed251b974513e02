"""The optimizers of a replicated script under NFDT, and the state that is equal on all workers after an exchange."""

import contextlib
import copy
import gc
import pickle
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from client_shim.replica import classes
from fdt import compat
from fdt.errors import CaptureError
from fdt.keras.variables import build_optimizer
from fdt.patches import Patch, patched
from fdt.process_group import RankPush
from fdt.process_group.peer import PeerGroup
from fdt.process_group.root import RootGroup
from nfdt import algorithms
from nfdt.replica.exchange import OptimizerExchange
from nfdt.replica.exchanges import OptimizerExchanges, moving


class Rank0(RootGroup):
    """Of two, the other of which hears nothing."""

    def __init__(self):
        self.size = 2

    def pushes(self):
        return []


class Worker1(PeerGroup):
    """With a rank 0 that holds twos."""

    def __init__(self):
        self.rank, self.size = 1, 2

    def broadcast(self, value, name):
        return {"optimizer 0": [["float32", [2]], ["int64", []]], "model 7": [["float32", [3]]]}

    def all_gather(self, vector, counts, name):
        twos = np.full(2, 2.0, "float32"), np.array([2], "int64"), np.full(3, 2.0, "float32")
        return np.concatenate([each.view(np.uint8) for each in twos])


def pushed():
    """A gradient of worker 1's."""
    header = {"optimizer": 0, "samples": 1, "absent": []}
    return RankPush(1, header, np.array([0.5], "float32"), lambda vector, header: None)


def test_after_a_meeting_nobody_is_late():
    weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(1.0)
    exchange = OptimizerExchange(0, optimizer, [weight], algorithms.make("dc_asgd"), Rank0(), lambda number, absent: [])

    def another_pushes():
        exchange.serve(optimizer.apply, pushed())
        return exchange.taus[-1]

    exchange.step(optimizer.apply, [tf.constant([0.5])], [weight])
    assert another_pushes() == 1 and exchange.changed
    exchange.step(optimizer.apply, [tf.constant([0.5])], [weight])
    exchange.met()
    before = float(weight[0])
    assert another_pushes() == 0 and before - float(weight[0]) == 0.5, "nothing to compensate"


@pytest.mark.parametrize(("rule", "momentum"), [("dc_asgd", 0.0), ("ddc_asgd", 0.9)])
def test_rank_0_is_never_late_as_it_computes_on_what_it_has_served(rule, momentum):
    weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(1.0, momentum=momentum)
    exchange = OptimizerExchange(0, optimizer, [weight], algorithms.make(rule), Rank0(), lambda number, absent: [])
    step = tf.function(lambda: exchange.step(optimizer.apply, [tf.constant([0.5])], [weight]))
    step()
    for _ in range(2):
        exchange.serve(optimizer.apply, pushed())
    before = float(weight[0])
    step()
    assert exchange.taus == [0, 1, 0, 0]
    assert before - float(weight[0]) == pytest.approx(0.5 + momentum * 0.5), "nothing to compensate or to penalise"


class Alone(Rank0):
    """The only worker."""

    def __init__(self):
        self.size = 1


@pytest.mark.parametrize("compiled", [True, False])
def test_the_only_workers_gradients_reach_the_optimizer_as_they_are(compiled):
    weights = [tf.Variable([1.0, 1.0], dtype=tf.float64), tf.Variable([1.0], dtype=tf.float64)]
    slices = tf.IndexedSlices(tf.constant([0.1, 0.2], tf.float64), tf.constant([1, 1]), tf.constant([2]))
    exchanges, seen = OptimizerExchanges(Alone(), None, lambda push: None), []
    optimizer = keras.optimizers.Adam()
    exchange = exchanges.of(optimizer, lambda gradients, variables: seen.append((gradients, variables)), weights)

    def step():
        exchanges.step(exchange, exchange.apply, [slices, None], weights)
        exchanges.step(exchange, exchange.apply, [slices], weights[:1])

    (tf.function(step, autograph=False) if compiled else step)()
    assert seen == [([slices, None], weights), ([slices], weights[:1])]
    assert exchanges.taus() == {0: 2} and exchange.changed


def test_an_optimizer_of_several_lists_of_variables_is_refused():
    weights, optimizer = [tf.Variable([1.0]), tf.Variable([2.0])], keras.optimizers.SGD(1.0)
    exchange = OptimizerExchange(0, optimizer, weights, algorithms.make("asgd"), Rank0(), lambda number, absent: [])
    exchange.step(optimizer.apply, [tf.constant([0.5])] * 2, weights)
    for others in (weights[:1], weights[::-1]):
        with pytest.raises(CaptureError, match=r"the optimizer at .*:\d+ updates other variables"):
            exchange.step(optimizer.apply, [tf.constant([0.5])] * len(others), others)
    assert [w.numpy().tolist() for w in weights] == [[0.5], [1.5]]


def test_a_worker_leaves_with_rank_0s_weights_and_steps():
    weight, optimizer = tf.Variable([1.0, 1.0]), keras.optimizers.SGD()
    exchanges = OptimizerExchanges(Worker1(), None, lambda push: None)
    exchanges.of(optimizer, optimizer.apply, [weight])
    exchanges.meet()
    assert weight.numpy().tolist() == [2.0, 2.0] and int(optimizer.iterations) == 2
    assert list(exchanges.algorithms) == ["ddc_asgd"], "the default for SGD"


def test_a_push_that_comes_as_rank_0_waits_for_the_others_is_told_to_all():
    weight, optimizer, told = tf.Variable([1.0]), keras.optimizers.SGD(1.0), []

    class Waiting(Rank0):
        def broadcast(self, value, name):
            if not told:
                exchanges.serve(pushed())
            told.append(value)
            return value

        def all_gather(self, vector, counts, name):
            return vector

    exchanges = OptimizerExchanges(Waiting(), "asgd", lambda push: None)
    exchanges.of(optimizer, optimizer.apply, [weight])
    exchanges.meet()
    assert told[-1] == {"optimizer 0": [["float32", (1,)], ["int64", ()]]} and weight.numpy().tolist() == [0.5]


class Meeting0(Rank0):
    """All of whom say the same."""

    def broadcast(self, value, name):
        return value

    def all_gather(self, vector, counts, name):
        return vector


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_push_updates_the_variables_that_it_has_gradients_of_whatever_rank_0s_step_has(compiled):
    """Two heads, trained in turn: rank 0's step has no gradient of the second, the push none of the first."""
    header, answers = {"optimizer": 0, "samples": 1, "absent": [0]}, []
    arriving = [RankPush(1, header, np.array([0.0, 0.5], "float32"), lambda vector, header: answers.append(vector))]

    class Pushed(Meeting0):
        def pushes(self):
            return [arriving.pop()] if arriving else []

    weights, optimizer = [tf.Variable([1.0]), tf.Variable([1.0])], keras.optimizers.SGD(1.0, weight_decay=0.5)
    exchanges = OptimizerExchanges(Pushed(), "asgd", lambda push: None)
    exchange = exchanges.of(optimizer, optimizer.apply, weights)

    def step():
        exchanges.step(exchange, exchange.apply, [tf.constant([0.25]), None], weights)

    (tf.function(step, autograph=False) if compiled else step)()
    assert not arriving and not answers and [w.numpy().tolist() for w in weights] == [[0.25], [1.0]]
    exchanges.serve_waiting()
    assert [a.tolist() for a in answers] == [[0.25, 0.0]] and [w.numpy().tolist() for w in weights] == [[0.25], [0.0]]


def stepping(exchanges, compiled):
    """A step of an optimizer's, and weak references to the optimizer and what it trains."""
    held = {"optimizer": keras.optimizers.SGD(1.0), "weight": tf.Variable([1.0])}

    def step():
        optimizer, weights = held["optimizer"], [held["weight"]]
        exchange = exchanges.of(optimizer, optimizer.apply, weights)
        exchanges.step(exchange, exchange.apply, [tf.constant([0.5])], weights)

    run = tf.function(step, autograph=False) if compiled else step

    def call(mine=True):
        """`mine`: not in another's turn."""
        with exchanges.within(run) if compiled else contextlib.nullcontext():
            if mine:
                run()

    return call, held


@pytest.mark.parametrize("compiled", [True, False])
def test_optimizers_that_the_script_drops_go_once_all_have_met(compiled):
    exchanges = OptimizerExchanges(Meeting0(), "asgd", lambda push: None)

    def train():
        step, held = stepping(exchanges, compiled)
        step()
        exchanges.meet()
        step()  # the exchange is behind the trace
        return [weakref.ref(each) for each in held.values()]

    dropped = train()
    gc.collect()
    exchanges.serve(pushed())
    exchanges.meet()
    gc.collect()
    assert [each() for each in dropped] == [None, None]
    assert exchanges.taus() == {0: 2, 1: 1}, "what they were late by is told in the end"
    train()
    assert exchanges.taus() == {0: 4, 1: 1}


def test_a_trace_keeps_the_optimizer_that_it_was_made_with():
    exchanges = OptimizerExchanges(Meeting0(), "asgd", lambda push: None)
    step, held = stepping(exchanges, compiled=True)
    step()
    held["optimizer"] = keras.optimizers.SGD(2.0)
    exchanges.meet()
    gc.collect()
    step()
    assert held["weight"].numpy().tolist() == [0.0]


def test_rank_0_serves_a_step_that_was_another_workers_turn():
    exchanges = OptimizerExchanges(Meeting0(), "asgd", lambda push: None)

    def train():
        step, held = stepping(exchanges, compiled=True)
        step()
        exchanges.meet()
        step(mine=False)
        return held["weight"]

    weight = train()
    gc.collect()
    exchanges.serve(pushed())
    assert weight.numpy().tolist() == [0.0]


def test_a_shallow_copy_has_an_exchange_of_its_own():
    exchanges = OptimizerExchanges(Worker1(), None, lambda push: None)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    one = exchanges.of(optimizer, optimizer.apply_gradients, [tf.Variable([1.0])])
    other = copy.copy(optimizer)
    assert exchanges.of(other, other.apply_gradients, [tf.Variable([1.0])]) is not one
    assert exchanges.of(optimizer, optimizer.apply_gradients, [tf.Variable([1.0])]) is one


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copied_optimizer_is_another_one(copied):
    exchanges = OptimizerExchanges(Worker1(), None, lambda push: None)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    one = exchanges.of(optimizer, optimizer.apply_gradients, [tf.Variable([1.0])])
    other = copied(optimizer)
    assert exchanges.of(other, other.apply_gradients, [tf.Variable([1.0])]).number == one.number + 1


def test_an_optimizer_that_a_worker_never_uses_shifts_no_other():
    exchanges = OptimizerExchanges(Worker1(), None, lambda push: None)
    weight = tf.Variable([1.0])
    with patched([Patch(kind, "__init__", exchanges.made) for kind in compat.of("keras").OPTIMIZERS]):
        _, scaled = keras.optimizers.SGD(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
        last = keras.optimizers.SGD()
    numbers = [exchanges.of(each, each.apply, [weight]).number for each in (last, scaled.inner_optimizer)]
    assert numbers == [3, 1]


def test_gradients_may_be_given_by_name():
    class Rank:
        def applying(self):
            return False

        def exchanged(self, optimizer, apply, gradients, variables):
            return gradients, variables

    apply = classes.apply_gradients(Rank())
    assert apply(None, "an optimizer", grads_and_vars=zip([1], [2], strict=True)) == ([1], [2])


def test_a_push_for_what_rank_0_has_not_used_is_an_error():
    with pytest.raises(CaptureError, match="Rank 1 pushed for an optimizer"):
        OptimizerExchanges(Rank0(), None, lambda push: None).serve(pushed())


def test_what_a_forward_pass_moves_is_neither_frozen_nor_random():
    layers = [keras.layers.BatchNormalization(), keras.layers.BatchNormalization(trainable=False)]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.1), *layers, keras.layers.Dense(1)])
    assert [v.name for v in moving(model)] == ["moving_mean", "moving_variance"]


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_that_is_first_used_in_a_later_trace_is_built_outside_of_it(kind):
    inner = keras.optimizers.SGD(0.5, momentum=0.5)
    optimizer = inner if kind is keras.optimizers.SGD else kind(inner, initial_scale=2.0)
    weight = keras.Variable(3.0)

    @tf.function
    def step(mine):
        if mine:
            optimizer.apply([tf.constant(2.0)], [weight])
        else:
            build_optimizer(optimizer, [weight])

    step(False)
    step(True)
    assert float(weight) == (2.0 if optimizer is inner else 2.5)


@pytest.mark.parametrize(("make", "slots"), [(tf_keras.optimizers.Adam, 2), (tf_keras.optimizers.SGD, 1)])
def test_an_optimizer_of_tf_keras_is_built_once(make, slots):
    weight, optimizer = tf.Variable([1.0]), make(0.1)
    for _ in range(2):
        build_optimizer(optimizer, [weight])
    assert optimizer._built and len([v for v in optimizer.variables if v.shape == weight.shape]) == slots


@pytest.mark.parametrize("rule", ["asgd", "ddc_asgd", "dc_asgd"])
def test_gradients_of_a_scaled_loss_are_those_of_the_loss(rule):
    """`loss_scale_factor`: the script multiplies the loss by it, and Keras's update divides the gradients."""

    def trained(scale):
        weight, optimizer = tf.Variable([1.0]), keras.optimizers.Adam(0.1, clipnorm=0.7, loss_scale_factor=scale)
        exchange = OptimizerExchange(0, optimizer, [weight], algorithms.make(rule), Rank0(), lambda number, absent: [])
        for number in range(3):
            exchange.step(optimizer.apply, [tf.constant([0.5 + number]) * (scale or 1.0)], [weight])
            exchange.serve(optimizer.apply, pushed())
        return weight.numpy()

    np.testing.assert_allclose(trained(128.0), trained(None), rtol=1e-6)
