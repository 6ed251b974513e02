"""--overlap-epochs: the servers train the next epoch while the client's callbacks of the last one run."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from client_shim.remote import Remote
from fdt.job import State
from fdt.trainable import build, is_left_out
from nfdt.server.job import ServedJob
from nfdt.server.local import LocalShardService
from nfdt.transport import EpochOver, WorkerGradient
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


def test_an_epoch_that_began_early_ends_when_the_client_has_asked_for_it(cluster):
    """Fewer batches than lanes: a lane that asks late gets each end. The snapshot has what callbacks wrote."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), workers=2, rule="asgd", overlap_epochs="1")
    (service,) = made.shard_services
    lanes = [service.open(worker, 1) for worker in range(2)]
    service.start_epoch(0, State())
    for epoch in range(2):
        service.ask(0, lanes[0])
        assert lanes[0].get(timeout=60).epoch == epoch
        service.push(0, epoch + 1, pushed(made, epoch, [0]), lanes[0])
        if not epoch:
            assert lanes[0].get(timeout=60) == EpochOver(0, 0)
    assert lanes[0].empty() and [event.epoch_end.epoch for event in made.events] == [0]
    service.ask(1, lanes[1])
    assert lanes[1].get(timeout=60) == EpochOver(1, 0)
    written = [np.full_like(array, 3.0) for array in made.trainable.model_arrays()]
    service.start_epoch(1, State(made.blobs.put_arrays(written)))
    service.ask(1, lanes[1])
    assert [lane.get(timeout=60) for lane in lanes] == [EpochOver(0, 1), EpochOver(1, 1)]
    ends = [event.epoch_end for event in made.events]
    assert [end.epoch for end in ends] == [0, 1]
    for array, want in zip(made.blobs.get_arrays(ends[1].state.model), written, strict=True):
        np.testing.assert_array_equal(array, want)


def test_weights_that_wait_for_their_worker_are_those_of_before_a_load(cluster):
    """The pull after them has what the client wrote, a value that no push has changed included."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), rule="asgd")
    job = ServedJob(made.spec, build(made.spec.program, made.blobs), made.blobs, shard=0, shards=1, workers=1)
    service = LocalShardService(job, 1, made._hear)
    (channel,) = service(0, 8, made.owned)
    channel.open()
    service.start_epoch(0, State())
    channel.ask()
    first = channel.answer()
    assert len(first.positions) == 10, "six trainable variables, two moving averages, the count and the rate"
    gradient = [None] * len(made.trainable.trainable)
    channel.push(1, WorkerGradient(gradient, 1, batches=first.batches))
    written = [np.full_like(array, 3.0) for array in made.trainable.model_arrays()]
    service.start_epoch(0, State(made.blobs.put_arrays(written)))
    waited = channel.answer()
    assert len(waited.positions) == 8, "nothing has changed the averages"
    channel.push(2, WorkerGradient(gradient, 1, batches=waited.batches))
    after = channel.answer()
    assert len(after.positions) == 10
    assert all(np.all(t.numpy() == 3.0) for t in after.tensors[:8])


def test_what_callbacks_did_not_write_stays_the_workers_own(cluster):
    """Ranks differ within a round of local SGD: a rate that a callback writes takes no momentum from them."""
    made = cluster(make_model(keras.optimizers.Adam(0.1)))
    remote = Remote(made.spec, made.trainable, SimpleNamespace(events=list), made.blobs, None)
    held = made.trainable.model_arrays(), made.trainable.optimizer_arrays()
    remote._load(State(*map(made.blobs.put_arrays, held)), made.blobs.put_arrays(made.trainable.metric_arrays()))
    made.trainable.model.optimizer.learning_rate = 0.5
    changed = remote._changed()
    assert not changed.model.id
    arrays = made.blobs.get_arrays(changed.optimizer)
    assert [array.tolist() for array in arrays if not is_left_out(array)] == [0.5]
