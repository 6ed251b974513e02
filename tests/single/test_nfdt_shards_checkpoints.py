"""A server's checkpoints: a restored server continues like the first one, and incomplete checkpoints are ignored."""

import os

import keras
import numpy as np
import pytest

from fdt import tensors
from fdt.errors import UserError
from nfdt.engine.recovery import ServerRecovery
from nfdt.server import job as job_module
from tests.single.nfdt_cluster import make_model, pushed

pytestmark = pytest.mark.timeout(120)


DECAY = "ExponentialDecay(initial_learning_rate=0.1, decay_steps=1, decay_rate=0.5)"
KERAS = f"server_optimizer(optimizer=nadam, learning_rate={DECAY})"


@pytest.mark.parametrize("rule", ["ddc_asgd", "dc_asgd_a", "ssgd", KERAS])
def test_a_checkpoint_restores_all_that_decides(cluster, rule):
    """Saved in the midst of an epoch, then restored into a new shard service: it goes on as the first one does."""

    def push(made, channels, number):
        batches = channels.ask()[0].batches
        channels.push(pushed(made, number, batches))

    workers = 1 if rule == "ssgd" else 2  # whose round waits for all workers
    made = cluster(make_model(keras.optimizers.Adam(0.1)), workers=workers, rule=rule, steps=6, restarts="1")
    made.start(0)
    channels = made.channels()
    push(made, channels, 1)
    made.shard_services[0].checkpoint()
    saved = made.events.pop().checkpoint
    assert (saved.number, saved.epoch, saved.running) == (1, 0, True)
    push(made, channels, 2)
    before, first = made.shard_services[0].job.trainable.model_arrays(), made.shard_services[0]
    first.close()
    made.shard_services = [made._shard_service(0, 1, workers)]
    made.shard_services[0].restore(saved.state)
    assert made.shard_services[0].job.applier.unused == set(), "the first push had all gradients"
    push(made, channels, 2)  # by a session that ended with the first shard service, and begins anew
    for was, now in zip(before, made.shard_services[0].job.trainable.model_arrays(), strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-6)
    assert made.shard_services[0].scheduler.epoch.dispatcher.done == 2
    channels.close()


def test_a_checkpoint_that_is_cut_short_is_passed_over(cluster, monkeypatch):
    """A server that dies while it writes has told nobody: what counts is the one before."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), restarts="1")
    made.start(0)
    channels = made.channels()
    answer = channels.ask()
    made.shard_services[0].checkpoint()
    before = [array.copy() for array in made.shard_services[0].job.trainable.model_arrays()]
    channels.push(pushed(made, 1, answer[0].batches))
    pack = tensors.pack_into

    def cut_short(arrays, out):
        pack(arrays[: len(arrays) // 2], out)
        raise SystemExit("killed")

    monkeypatch.setattr(tensors, "pack_into", cut_short)
    with pytest.raises(SystemExit):
        made.shard_services[0].checkpoint()
    monkeypatch.undo()
    recovery = ServerRecovery(1)
    for event in made.events:
        recovery.keep(0, event.checkpoint)
    (setup,), _ = recovery.restore(made.spec.to_proto())
    made.shard_services = [made._shard_service(0, 1, 1)]
    made.shard_services[0].restore(setup.snapshot)
    for was, now in zip(before, made.shard_services[0].job.trainable.model_arrays(), strict=True):
        np.testing.assert_array_equal(was, now)
    assert made.shard_services[0].scheduler.epoch.dispatcher.done == 0
    channels.close()


def test_a_checkpoint_that_finds_no_room_is_left_out(cluster, monkeypatch, capsys):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), restarts="1")
    made.start(0)

    def full(arrays):
        raise UserError("/dev/shm has no room for 10 bytes more: no space left on device")

    monkeypatch.setattr(made.blobs, "put_arrays", full)
    made.shard_services[0].checkpoint()
    assert not made.events and "the checkpoint was not saved: /dev/shm has no room" in capsys.readouterr().err


def test_a_changed_byte_of_a_checkpoint_is_an_error_by_name(cluster):
    made = cluster(make_model(keras.optimizers.Adam(0.1)), restarts="1", rule="ddc_asgd")
    made.start(0)
    made.shard_services[0].checkpoint()
    ref = made.events.pop().checkpoint.state
    made.shard_services[0].close()
    made.shard_services = [made._shard_service(0, 1, 1)]
    file = made.blobs.directory / ref.id
    whole = file.read_bytes()
    arrays = made.blobs.get_arrays(ref)
    used = sum(array.nbytes for array in arrays)
    silent = 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            restored = [a.tobytes() for a in job_module._whole(made.shard_services[0].job, ref)]
            assert restored == [array.tobytes() for array in arrays[1:]]
            silent += 1
        except UserError as error:
            assert str(error).startswith("the checkpoint of server 0 in shared memory is damaged")
    assert silent <= len(whole) - used, "only the gaps between aligned arrays may change"
    os.truncate(file, len(whole) // 2)
    with pytest.raises(UserError, match="is damaged"):
        made.shard_services[0].restore(ref)
