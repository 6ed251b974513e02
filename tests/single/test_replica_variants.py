"""The regions of one piece of code that a script uses for several models or settings."""

import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from nfdt.replica.round_robin import RoundRobin
from nfdt.replica.variants import Variants


class Region:
    pass


class Trainer:
    def __init__(self, model, note=None):
        self.model, self.note = model, note

    def step(self, x):
        return self.model(x)


@pytest.fixture
def of():
    """Returns the region for one value."""
    variants = Variants(Region)
    return lambda value, **more: variants.of({"name": value}, numbers=more.get("numbers", False))


def closure(model):
    return lambda x: model(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        lambda: keras.optimizers.SGD(),
        lambda: keras.Variable(1.0),
        lambda: tf.Variable(1.0),
        lambda: tf.Module(),
    ],
)
@pytest.mark.parametrize(
    "held",
    [
        lambda a: a,
        lambda a: [a],
        lambda a: {"a": (a, 1)},
        closure,
        lambda a: tf.function(closure(a)),
        Trainer,
        lambda a: Trainer(a).step,
        lambda a: functools.partial(print, a),
    ],
)
def test_each_model_has_a_region_whatever_holds_it(of, make, held):
    one, two = make(), make()
    first, second = of(held(one)), of(held(two))
    assert first is not second
    assert of(held(one)) is first and of(held(two)) is second, "in another container, too"


def test_arrays_and_what_is_new_in_each_call_are_data(of):
    region = of(np.zeros(2))
    assert of(np.ones(3)) is region and of(tf.zeros(1)) is region and of([tf.zeros(1), [1.0]]) is region
    assert of(tf.data.Dataset.range(2)) is region and of(iter(tf.data.Dataset.range(2))) is region
    assert of(Trainer(None, object())) is of(Trainer(np.ones(1), object()))


def test_settings_belong_to_the_key_as_long_as_they_are_few(of):
    regions = [of(value) for value in (True, False, None, "mean")]
    assert len(set(regions)) == 4 and of(True) is regions[0]
    assert of(1) is of(2), "a position of a batch"
    assert of(3, numbers=True) is not of(4, numbers=True)
    last = [of(step, numbers=True) for step in range(20)]
    assert len(set(last[-10:])) == 1, "the number of the step"


def test_a_region_goes_with_its_model_and_what_lives_for_one_call_is_data(of):
    regions = []
    for _ in range(12):
        regions.append(of(variable := tf.Variable(1.0)))
        del variable
        gc.collect()
    assert len({id(region) for region in regions[:8]}) == 8 and regions[-1] is regions[-2]


def test_a_sweep_of_many_models_is_one_of_models(of):
    for _ in range(12):
        model = tf.Variable(1.0)
        regions = [of(model) for _ in range(3)]
        assert len(set(regions)) == 1
        assert regions[0] is not of(tf.Variable(2.0))


def test_a_call_returns_what_the_same_model_gave():
    turns = RoundRobin(1, 2, lambda: None, lambda rows: None)
    one, two, given = tf.Variable(1.0), tf.Variable(2.0), []

    class Function:
        pass

    function = Function()
    for step in range(4):
        for model, name in ((one, "one"), (two, "two")):
            given.append(turns.call(function, ((model,), {}), lambda name=name, step=step: f"{name} {step}"))
    assert given == ["one 0", "two 0", "one 1", "two 1", "one 1", "two 1", "one 3", "two 3"]


def test_micro_batches_of_several_settings_are_one_workers():
    turns = RoundRobin(0, 2, lambda: None, lambda rows: None)
    whose = []
    for step in range(12):  # three micro-batches for each update, and a flag that changes within one
        region = turns.region(turns, "code", {"flag": step % 7 == 0})
        turns.begin(region, None, None, ready=False)
        whose.append(turns._whose)
        turns.applied += step % 3 == 2
    assert whose == ["mine"] * 3 + ["others"] * 3 + ["mine"] * 3 + ["others"] * 3
