"""--overlap-epochs: the servers train the next epoch while the client's callbacks of the last one run."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from client_shim.remote import Remote
from fdt.job import State
from tests.single.nfdt_cluster import make_model, pushed

pytestmark = pytest.mark.timeout(120)


def trained(cluster, shards, callback):
    """The model and the optimizer after two epochs of three updates each.

    `callback(trainable)` of the first epoch has ended two updates into the second one.
    """
    made = cluster(make_model(keras.optimizers.Adam(0.1)), shards, steps=3, rule="asgd", overlap_epochs="1")
    remote = Remote(made.spec, made.trainable, SimpleNamespace(events=list), made.blobs, None)
    channels = made.channels()
    made.start(0)
    answer = channels.ask()
    for number in range(5):
        answer = channels.push(pushed(made, number, answer[0].batches))
        if number == 2:
            snapshot = State(*map(made.blobs.put_arrays, made.snapshot()))
            answer = channels.ask()
    remote._load(snapshot, made.blobs.put_arrays(made.trainable.metric_arrays()))
    callback(made.trainable)
    changed = remote._changed()
    for shard_service in made.shard_services:
        shard_service.start_epoch(1, State(changed.model, changed.optimizer))
    channels.push(pushed(made, 5, answer[0].batches))
    channels.close()
    return made.snapshot()


@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_callback_writes_takes_no_other_update_back(cluster, shards):
    def callback(trainable):
        trainable.model.optimizer.learning_rate = 0.0
        trainable.trainable[-1].assign([7.0])

    plain, expected = trained(cluster, shards, lambda trainable: None)
    model, optimizer = trained(cluster, shards, callback)
    assert (optimizer[0], optimizer[1]) == (6, np.float32(0.0)), "iterations and the rate"
    for now, want in zip(optimizer[2:], expected[2:], strict=True):
        np.testing.assert_array_equal(now, want)
    np.testing.assert_array_equal(model[5], [7.0])
    assert not np.array_equal(model[0], plain[0]), "the last update has the new rate"
