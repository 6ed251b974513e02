"""The contract of ParameterServerChannel: by gRPC (streams, shared memory), in process, and on the simulated clock."""

import keras
import numpy as np
import numpy.testing as npt
import pytest
import simpy
import tensorflow as tf

from fdt.job import State
from fdt.network.transfers import run_until
from fdt.trainable import build
from nfdt.server.job import ServedJob
from nfdt.server.local import LocalShardService
from nfdt.simulator.workers import SimulatedChannel
from nfdt.transport import EpochOver, Interrupted, Release, Weights, WorkerGradient
from nfdt.transport.grpc_channel import GrpcChannels
from tests.single.nfdt_cluster import gradients, make_model

pytestmark = pytest.mark.timeout(120)
STEPS = 4


class Server:
    """Shard 0 of a job of two workers, and the channels of one kind to it."""

    def __init__(self, kind, cluster, **options):
        way = {"channel": "grpc"} if kind == "stream" else {}
        self._made = cluster(
            make_model(keras.optimizers.SGD(1.0)), workers=2, rule="asgd", overlap="off", **way, **options
        )
        self._kind, self._env, self._sizes = kind, simpy.Environment(), {}
        self.shard = self._made.shard_services[0]
        if kind in ("in process", "simulated"):
            spec, blobs = self._made.spec, self._made.blobs
            job = ServedJob(spec, build(spec.program, blobs), blobs, shard=0, shards=1, workers=2)
            self.shard = LocalShardService(job, 2, self._made._hear)

    def channel(self, worker=0, steps=STEPS):
        made = self._made
        if self._kind == "simulated":
            channel = SimulatedChannel(self._env, self.shard, worker, steps, self._sizes)
        elif self._kind == "in process":
            (channel,) = self.shard(worker, steps, made.owned)
        else:
            directory = None if self._kind == "stream" else made.blobs.directory
            (channel,) = GrpcChannels(made.addresses, made.token, "j", 0, directory)(worker, steps, made.owned)
        channel.open()
        return channel

    def start(self, *workers):
        """Channels of `workers`, which have asked, and the answers after the epoch's start."""
        channels = [self.channel(worker) for worker in workers]
        self.shard.start_epoch(0, State())
        return channels, [self.ask(channel) for channel in channels]

    def ask(self, channel):
        channel.ask()
        return self.answer(channel)

    def push(self, channel, number, batches, **kind):
        """Push gradient `number` and return the answer."""
        tensors = kind.pop("tensors", gradients(self._made.trainable, number))
        channel.push(number, WorkerGradient(tensors, 1, batches=batches, **kind))
        return self.answer(channel)

    def answer(self, channel):
        if self._kind == "simulated":
            assert run_until(self._env, channel.arrived), "an answer must arrive"
        return channel.answer()

    def gradient(self, number):
        return gradients(self._made.trainable, number)

    @property
    def weights(self):
        return self.shard.job.trainable.model_arrays()


@pytest.fixture(params=["stream", "shared memory", "in process", "simulated"])
def server(request, cluster):
    """Make a server whose channels are of one kind."""
    return lambda **options: Server(request.param, cluster, **options)


def copies(weights):
    """The tensors, by position."""
    return {p: tensor.numpy().copy() for p, tensor in zip(weights.positions, weights.tensors, strict=True)}


def test_a_pull_gives_all_variables_and_the_batches(server):
    made = server()
    (channel,), (first,) = made.start(0)
    assert isinstance(first, Weights)
    assert (first.epoch, tuple(first.batches), first.pull) == (0, (0,), 1)
    count = len(made.weights)
    assert list(first.positions) == list(range(count + 2)), "iterations and learning rate come behind the variables"
    for position, want in enumerate(made.weights):
        npt.assert_array_equal(copies(first)[position], want)
    channel.close()


def test_a_push_is_applied_and_answered_with_the_next_weights(server):
    made = server()
    (channel,), (first,) = made.start(0)
    before = copies(first)
    second = made.push(channel, 1, first.batches)
    after = copies(second)
    assert made.shard.scheduler.state.version == 1
    assert second.pull == 2 and tuple(second.batches) != tuple(first.batches)
    for position, gradient in enumerate(made.gradient(1)):
        npt.assert_allclose(after[position], before[position] - gradient.numpy(), rtol=1e-5, atol=1e-6)
    channel.close()


def test_an_absent_gradient_and_a_forward_change_arrive_as_they_are(server):
    made = server()
    (channel,), (first,) = made.start(0)
    before = made.weights
    part = made.shard.job.ownership.part
    absent = [None, *made.gradient(1)[1:]]
    changes = [tf.fill(part.others[0].shape, 0.5)]
    made.push(channel, 1, first.batches, tensors=absent, changes=changes, changed=[0], decays=[0.25])
    npt.assert_array_equal(made.weights[0], before[0])
    assert not np.array_equal(made.weights[1], before[1])
    npt.assert_allclose(made.weights[len(part.trainable)], 0.25 * before[len(part.trainable)] + 0.5)
    channel.close()


def test_a_push_that_is_repeated_with_its_number_is_applied_once(server):
    made = server()
    (channel,), (first,) = made.start(0)
    once = copies(made.push(channel, 1, first.batches))
    channel.open()  # the answer was lost with its session
    again = made.push(channel, 1, first.batches)
    assert made.shard.scheduler.state.version == 1
    for position, tensor in once.items():
        npt.assert_array_equal(copies(again)[position], tensor)
    made.push(channel, 2, again.batches)
    assert made.shard.scheduler.state.version == 2
    channel.close()


def test_staleness_counts_the_updates_between_a_pull_and_its_push(server):
    made = server()
    (one, two), (first, second) = made.start(0, 1)
    assert (first.pull, second.pull) == (1, 2) and {*first.batches, *second.batches} == {0, 1}
    made.push(one, 1, first.batches)
    made.push(two, 1, second.batches)
    assert dict(made.shard.scheduler.epoch.staleness) == {0: 1, 1: 1}
    for channel in (one, two):
        channel.close()


def test_an_epoch_and_a_job_end(server):
    made = server()
    channel = made.channel(1)
    made.shard.leave(0)
    made.shard.start_epoch(0, State())
    answer = made.ask(channel)
    for number in range(1, 3):
        answer = made.push(channel, number, answer.batches)
    channel.end_of_data(2)
    assert made.answer(channel) == EpochOver(1, 0)
    made.shard.finish()
    assert made.ask(channel) == Release(1)
    channel.close()


def test_a_push_of_a_batch_of_another_worker_changes_nothing(server):
    made = server()
    (one, two), (first, second) = made.start(0, 1)
    before = made.weights
    answer = made.push(one, 1, second.batches)
    assert tuple(answer.batches) == tuple(first.batches) and made.shard.scheduler.state.version == 0
    for left, right in zip(before, made.weights, strict=True):
        npt.assert_array_equal(left, right)
    for channel in (one, two):
        channel.close()


def test_a_gradient_that_is_not_finite_is_marked_so(server):
    made = server(on_nan="skip")
    (channel,), (first,) = made.start(0)
    made.push(channel, 1, first.batches, finite=False)
    assert made.shard.scheduler.state.version == 0 and made.shard.scheduler.epoch.skipped == 1
    channel.close()


def test_a_session_that_the_server_ends_is_interrupted(server):
    made = server()
    channel = made.channel()
    channel.ask()  # no epoch runs: the answer would wait
    made.shard.close()
    with pytest.raises(Interrupted):
        made.answer(channel)
    channel.close()


def test_after_a_channel_is_closed_another_takes_its_place(server):
    made = server()
    (channel,), (first,) = made.start(0)
    channel.close()
    other = made.channel()
    assert tuple(made.ask(other).batches) == tuple(first.batches)
    other.close()
