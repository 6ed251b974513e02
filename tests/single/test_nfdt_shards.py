"""Variables divided among servers: any number of servers gives the same weights."""

import contextlib
import threading
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt.errors import UserError
from fdt.job import BatchHooks, FitArguments
from fdt.keras import named
from fdt.trainable import Trainable, build
from nfdt.model.shards import own, owners, slot_owners
from nfdt.model.variables import OwnedVariables
from nfdt.server.job import ServedJob
from tests.single.nfdt_cluster import gradients, make_model, pushed

pytestmark = pytest.mark.timeout(120)


def drive(cluster, schedule):
    """Workers push in the order of `schedule` (their numbers); one epoch."""
    couriers = [cluster.channels(w) for w in range(max(schedule) + 1)]
    cluster.steps = len(schedule)
    answers, waiting = {}, []
    for worker, channels in enumerate(couriers):
        waiting.append(threading.Thread(target=lambda w=worker, c=channels: answers.update({w: c.ask()})))
        waiting[-1].start()
    cluster.start(0)
    for thread in waiting:
        thread.join()
    ended = []
    for number, worker in enumerate(schedule):
        push = pushed(cluster, number, answers[worker][0].batches, samples=4)
        if number >= len(schedule) - len(couriers):  # the last answers come together
            pushing = threading.Thread(target=couriers[worker].push, args=(push,))
            pushing.start()
            ended.append(pushing)
            while len(schedule) - number > 1 and cluster.shard_services[0].scheduler.epoch.dispatcher.done <= number:
                pushing.join(0.01)
        else:
            answers[worker] = couriers[worker].push(push)
    for thread in ended:
        thread.join()
    result = cluster.snapshot()
    for channels in couriers:
        channels.close()
    return result


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01, use_ema=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_servers_gives_the_same_weights(cluster, name):
    schedule = [0, 0, 1, 0, 1, 1, 0, 1]
    results = []
    for shards in (1, 2, 3):
        made = cluster(make_model(OPTIMIZERS[name]()), shards, workers=2, steps=8, rule="dc_asgd(lam=0.5)")
        results.append(drive(made, schedule))
    for group in range(2):
        for other in results[1:]:
            for left, right in zip(results[0][group], other[group], strict=True):
                np.testing.assert_array_equal(left, right)
    start = Trainable(named("keras"), make_model(OPTIMIZERS[name]())).model_arrays()
    assert not np.array_equal(results[0][0][0], start[0])


@pytest.mark.parametrize("channel", ["shm", "grpc"])
def test_weights_arrive_as_they_are(cluster, channel):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), channel=channel, rule="asgd")
    made.start(0)
    channels = made.channels()
    answer = channels.ask()
    positions, tensors = answer[0].positions, answer[0].tensors
    arrays = made.trainable.model_arrays()
    assert len(positions) == len(arrays) + 2, "iterations and learning rate come along"
    for array, tensor in zip(arrays, tensors, strict=False):
        np.testing.assert_array_equal(array, tensor.numpy())
    before = [t.numpy().copy() for t in tensors]
    (weights,) = channels.push(pushed(made, 0, answer[0].batches))
    for old, gradient, new in zip(before, gradients(made.trainable, 0), weights.tensors, strict=False):
        np.testing.assert_allclose(new.numpy(), old - gradient.numpy(), rtol=1e-5, atol=1e-6)
    channels.close()


def test_bytes_are_shared_out_evenly():
    assert owners([100, 10, 10, 10], 2, 4) == [0, 1, 1, 1]
    assert owners([5, 5, 5, 5], 2, 4) == [0, 1, 0, 1]
    assert owners([7], 3, 1) == [0]
    assert owners([7, 3, 100, 1], 2, 2) == [0, 1, 1, 0], "shard 0 has a trainable one, whatever the others' sizes"


def test_slots_go_with_their_variables():
    model = make_model(keras.optimizers.Adam())
    found = slot_owners(model.optimizer, model.trainable_variables, list(range(len(model.trainable_variables))))
    slots = [v for v in model.optimizer.variables if v.value.shape.rank]
    assert len(slots) == 2 * len(model.trainable_variables)
    assert all(id(v) in found for v in slots)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    ],
)
@pytest.mark.parametrize("rule", ["asgd", "server_optimizer(local_steps=2)"])
def test_what_cannot_be_split_is_refused_where_servers_use_it(cluster, rule, optimizer):
    made = cluster(make_model(optimizer()), 1, rule=rule)
    ServedJob(made.spec, build(made.spec.program, made.blobs), made.blobs, 0, 1, 1)
    with pytest.raises(UserError, match="--ps must be 1") if rule == "asgd" else contextlib.nullcontext():
        ServedJob(made.spec, build(made.spec.program, made.blobs), made.blobs, 0, 2, 1)


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_the_slots_of_a_legacy_optimizer_go_with_their_weights(kind):
    options = {"momentum": 0.9} if kind == "SGD" else {}
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(4,)), tf_keras.layers.Dense(1)])
    model.compile(getattr(tf_keras.optimizers.legacy, kind)(**options), "mse")
    spec = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)), None
    named("tf_keras").build(model, spec)
    trainable = Trainable(named("tf_keras"), model)
    for shard in range(2):
        mine = own(trainable, shard, 2)
        slots = [trainable.optimizer[i].shape for i in mine.optimizer if trainable.optimizer[i].shape.rank]
        assert len(slots) == len(mine.trainable) * (2 if kind == "Adam" else 1)
        assert {tuple(s) for s in slots} == {tuple(trainable.trainable[i].shape) for i in mine.trainable}


def test_a_variable_of_an_optimizer_that_names_no_weight_is_refused():
    class Own(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.history = self.add_variable(shape=(3,), name="history")

    trainable = Trainable(named("keras"), make_model(Own(0.1)))
    own(trainable, 0, 1)
    with pytest.raises(UserError, match="--ps must be 1 with Own, which does not tell the weight that its variable"):
        own(trainable, 0, 2)


def test_batch_hooks_that_may_use_the_model_need_one_server(cluster):
    made = cluster(make_model(keras.optimizers.SGD(0.1)), 1)
    spec = replace(made.spec, fit=FitArguments(epochs=9, batch_hooks=BatchHooks.STATE))
    ServedJob(spec, build(spec.program, made.blobs), made.blobs, 0, 1, 1)
    with pytest.raises(UserError, match="--ps must be 1 with a callback whose hooks may use the model at each batch"):
        ServedJob(spec, build(spec.program, made.blobs), made.blobs, 0, 2, 1)


def test_a_push_without_gradients_for_a_servers_variables_is_a_step_of_its_optimizer():
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([keras.Variable(np.ones(2, "float32"))])
    OwnedVariables(optimizer, []).apply([], [])
    assert int(optimizer.iterations) == 1
