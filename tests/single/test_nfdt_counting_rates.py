"""Learning rates of a script under NFDT: one that counts its calls is refused, one that keeps its result is not."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt.errors import UserError
from fdt.keras import named
from fdt.process_group.peer import PeerGroup
from fdt.trainable import Trainable
from nfdt import algorithms
from nfdt.model.settings import refuse_counting_rate
from nfdt.model.variables import OwnedVariables
from nfdt.replica.exchange import OptimizerExchange
from nfdt.server.applier import ModelApplier
from nfdt.worker.local_steps import LocalStep

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}


def schedule(library, call, **held):
    """Return an optimizer whose schedule runs `call(self, step)`, with attributes `held`."""

    class Own(library.optimizers.schedules.LearningRateSchedule):
        __call__ = call

        def get_config(self):
            return {}

    own = Own()
    vars(own).update(held)
    return library.optimizers.SGD(own)


def counts(self, step):
    self.n = self.n + 1
    return 0.1 / self.n


def counts_in_list(self, step):
    self.calls.append(1)
    return 0.1 / len(self.calls)


def counts_for_all(self, step):
    type(self).n = getattr(type(self), "n", 0) + 1
    return 0.1 / type(self).n


def counts_in_variable(self, step):
    return 0.1 / self.variable.assign_add(1.0)


def keeps_the_last(self, step):
    self.last = 0.1 + 0.0 * tf.cast(step, tf.float32)
    return self.last


def computes_once(self, step):
    if self.factor is None:
        self.factor = math.log(2.0)
    return 0.1 * self.factor


def cannot_be_traced(self, step):
    self.n = float(step)
    return 0.1


def calls_another(self, step):
    return self.inner(step)


COUNTING = {
    "Python": (counts, {"n": 0}),
    "NumPy": (counts, {"n": np.int64(0)}),
    "list": (counts_in_list, {"calls": []}),
    "class": (counts_for_all, {}),
    "variable": (counts_in_variable, {"variable": tf.Variable(0.0)}),
}
HARMLESS = {
    "last": (keeps_the_last, {"last": None}),
    "cache": (computes_once, {"factor": None}),
    "number of the step": (cannot_be_traced, {"n": 0.0}),
}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize(("call", "held"), COUNTING.values(), ids=COUNTING)
def test_a_schedule_that_counts_its_calls_is_refused(library, call, held):
    with pytest.raises(UserError, match="the learning rate Own counts its calls"):
        refuse_counting_rate(schedule(library, call, **held))


@pytest.mark.parametrize(("call", "held"), HARMLESS.values(), ids=HARMLESS)
def test_a_schedule_that_keeps_what_it_computed_is_not(call, held):
    refuse_counting_rate(schedule(keras, call, **held))


def test_a_schedule_within_another_is_seen():
    inner = schedule(keras, counts, n=0)._learning_rate
    with pytest.raises(UserError, match="the learning rate Own counts"):
        refuse_counting_rate(schedule(keras, calls_another, inner=inner))


def test_a_function_that_keras_calls_without_a_step_is_seen():
    calls = []

    def rate():
        rate.calls = [*calls, len(calls)]
        calls.append(1)
        return 0.1

    with pytest.raises(UserError, match="the learning rate rate counts"):
        refuse_counting_rate(keras.optimizers.SGD(rate))


def test_a_legacy_optimizers_schedule_is_seen():
    own = schedule(tf_keras, counts, n=0)._learning_rate
    with pytest.raises(UserError, match="the learning rate Own counts"):
        refuse_counting_rate(tf_keras.optimizers.legacy.SGD(own))


class Rank0(PeerGroup):
    def __init__(self):
        self.rank, self.size = 0, 2


def exchange(optimizer):
    weight = tf.Variable([1.0])
    return OptimizerExchange(0, optimizer, [weight], algorithms.make("asgd"), Rank0(), lambda number, absent: [])


def applier(optimizer):
    return ModelApplier(OwnedVariables(optimizer, [keras.Variable([1.0])], [], []))


def local_step(optimizer):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return LocalStep(Trainable(named("keras"), model))


@pytest.mark.parametrize("place", [applier, exchange, local_step])
def test_wherever_an_update_is_prepared(place):
    place(schedule(keras, keeps_the_last, last=None))
    with pytest.raises(UserError, match="counts its calls"):
        place(schedule(keras, counts, n=0))
