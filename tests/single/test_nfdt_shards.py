"""Sessions, servers and shards in one process: real gRPC, a model per shard, one worker whose order is fixed."""

import dataclasses
import errno
import threading
from types import SimpleNamespace

import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf

from client_shim.capture.program import capture_program
from fdt import tensors
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.job import ArrayData, FitArguments, JobSpec, State
from fdt.keras import named
from fdt.service.auth import new_token
from fdt.service.transport import open_channel
from fdt.trainable import Trainable, build
from nfdt.recovery import Recovery
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.desk import Desk
from nfdt.server.follower import FollowingDesk, follow
from nfdt.server.job import ServedJob, layout_of
from nfdt.server.service import Service
from nfdt.server.shards import merge, own, owners, slot_owners
from nfdt.step import ownerships
from nfdt.transport.buffers import Layout
from nfdt.transport.client import Courier, Interrupted, Link, Outgoing

pytestmark = pytest.mark.timeout(120)
SPEC = (tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.float32), None)


def make_model(optimizer):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    model.compile(optimizer, "mse")
    named("keras").build(model, SPEC)
    return model


class Cluster:
    """`shards` servers in threads of this process, and one worker's courier."""

    def __init__(self, directory, model, shards=1, workers=1, steps=8, **options):
        self.blobs, self.token, self.events = LocalBlobs(directory), new_token(), []
        self.breaks = 0  # of a follower's stream of the log, to come
        self.trainable = Trainable(named("keras"), model)
        program = capture_program(self.trainable.flavor, model, self.blobs)
        state = State(
            self.blobs.put_arrays(self.trainable.model_arrays()),
            self.blobs.put_arrays(self.trainable.optimizer_arrays()),
        )
        data = ArrayData(state.model, "0", 0)
        self.spec = JobSpec("j", program, state, data, FitArguments(epochs=9), options=options)
        self.addresses = [f"unix:{directory}/{shard}.sock" for shard in range(shards)]
        self.channel, self.steps, self.said = options.get("channel", "auto"), steps, threading.Condition()
        self.services = [Service(self.blobs, self.token, a, self._failed) for a in self.addresses]
        self.desks = [self._desk(shard, shards, workers) for shard in range(shards)]
        self.owned = ownerships(self.trainable, shards)

    def _desk(self, shard, shards, workers):
        job = ServedJob(self.spec, build(self.spec.program, self.blobs), self.blobs, shard, shards, workers)
        desk = (FollowingDesk if shard else Desk)(job, workers, self._hear)
        self.services[shard].show(desk)
        if shard:
            replay = desk.replay
            desk.replay = lambda log: replay(self._until_broken(log))
            threading.Thread(target=follow, args=(desk, self.addresses[0], self.token), daemon=True).start()
        return desk

    def _failed(self, error, detail):
        raise AssertionError(detail)

    def _hear(self, event):
        with self.said:
            self.events.append(event)
            self.said.notify_all()

    def _until_broken(self, log):
        for entry in log:
            if self.breaks:
                self.breaks -= 1
                raise Interrupted("on purpose: this entry is lost on the way")
            yield entry

    def courier(self, worker=0, incarnation=0):
        hello = pb.Hello(job="j", worker=worker, steps=self.steps, incarnation=incarnation)
        directory = None if self.channel == "grpc" else self.blobs.directory
        links = [
            Link(address, self.token, hello, layout_of(owned.part), directory)
            for address, owned in zip(self.addresses, self.owned, strict=True)
        ]
        return Courier(links)

    def start(self, epoch):
        for desk in self.desks:
            desk.start_epoch(epoch, State())

    def snapshot(self):
        """The whole model after an epoch, as the engine puts it together."""
        with self.said:
            assert self.said.wait_for(lambda: len(self.events) >= len(self.desks), 30)
            ends, self.events = sorted(self.events, key=lambda e: -e.epoch_end.steps), []
        groups = [[self.blobs.get_arrays(getattr(e.epoch_end.state, g)) for e in ends] for g in ("model", "optimizer")]
        return [group[0] if len(ends) == 1 else merge(group) for group in groups]

    def close(self):
        for desk in self.desks:
            desk.close()
        for service in self.services:
            service.close()


@pytest.fixture
def cluster(tmp_path):
    made = []

    def make(*args, **kwargs):
        made.append(Cluster(tmp_path / str(len(made)), *args, **kwargs))
        return made[-1]

    for number in range(4):
        (tmp_path / str(number)).mkdir()
    yield make
    for one in made:
        one.close()


def gradients(trainable, number):
    rng = np.random.default_rng(number)
    return [tf.constant(rng.normal(size=v.shape), tf.float32) for v in trainable.trainable]


def parts(cluster, number):
    whole, others = gradients(cluster.trainable, number), len(cluster.owned[0].part.others)
    del others
    return [
        Outgoing(
            [whole[i] for i in owned.trainable],
            [tf.fill(v.shape, 0.5) for v in owned.part.others],
            list(range(len(owned.part.others))),
        )
        for owned in cluster.owned
    ]


def drive(cluster, schedule):
    """Workers push in the order of `schedule` (their numbers); one epoch."""
    couriers = [cluster.courier(w) for w in range(max(schedule) + 1)]
    cluster.steps = len(schedule)
    answers, waiting = {}, []
    for worker, courier in enumerate(couriers):
        waiting.append(threading.Thread(target=lambda w=worker, c=courier: answers.update({w: c.ask()})))
        waiting[-1].start()
    cluster.start(0)
    for thread in waiting:
        thread.join()
    ended = []
    for number, worker in enumerate(schedule):
        push = pb.Push(batches=answers[worker].weights.batches, samples=4)
        if number >= len(schedule) - len(couriers):  # the last answers come together
            pushing = threading.Thread(target=couriers[worker].push, args=(push, parts(cluster, number)))
            pushing.start()
            ended.append(pushing)
            while len(schedule) - number > 1 and cluster.desks[0].policy.epoch.ledger.done <= number:
                pushing.join(0.01)
        else:
            answers[worker] = couriers[worker].push(push, parts(cluster, number))
    for thread in ended:
        thread.join()
    result = cluster.snapshot()
    for courier in couriers:
        courier.close()
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
    courier = made.courier()
    answer = courier.ask()
    ((positions, tensors),) = courier.pulled()
    arrays = made.trainable.model_arrays()
    assert len(positions) == len(arrays) + 2, "iterations and learning rate come along"
    for array, tensor in zip(arrays, tensors, strict=False):
        np.testing.assert_array_equal(array, tensor.numpy())
    before = [t.numpy().copy() for t in tensors]
    courier.push(pb.Push(batches=answer.weights.batches, samples=1), parts(made, 0))
    ((positions, tensors),) = courier.pulled()
    for old, gradient, new in zip(before, gradients(made.trainable, 0), tensors, strict=False):
        np.testing.assert_allclose(new.numpy(), old - gradient.numpy(), rtol=1e-5, atol=1e-6)
    courier.close()


def test_a_push_repeated_after_the_stream_broke_applies_once(cluster):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), rule="asgd")
    made.start(0)
    courier = made.courier()
    batch = courier.ask().weights.batches
    link = courier.links[0]
    say = link.say

    def say_and_break(message, push):
        say(message, push)
        link.say = say
        link._call.cancel()
        return say(message, push)  # on the broken stream: the answer was lost

    link.say = say_and_break
    answer = courier.push(pb.Push(batches=batch, samples=1), parts(made, 0))
    assert answer.HasField("weights")
    assert made.desks[0].policy.core.version == 1
    assert int(made.desks[0].job.trainable.model.optimizer.iterations) == 1
    courier.close()


def repeats(cluster, steps):
    """One worker, two shards, and an epoch of so many steps that has begun."""
    made = cluster(make_model(keras.optimizers.SGD(0.1, momentum=0.9)), 2, steps=steps, rule="dc_asgd(lam=0.5)")
    courier = made.courier()
    made.start(0)
    return made, courier


def trained(made, courier, steps, disturb):
    """`disturb(number)` is called before each push, and before the last word."""
    answer = courier.ask()
    for number in range(steps):
        assert list(answer.weights.batches) == [number]
        disturb(number)
        answer = courier.push(pb.Push(batches=[number], samples=1), parts(made, number))
    assert answer.HasField("epoch_over")
    result = made.snapshot()
    courier.close()
    return result


def test_links_that_break_anywhere_change_nothing(cluster):
    """Any shard's, in the midst of any exchange, and shard 0's log too: each gradient is applied once, on both."""
    undisturbed = trained(*repeats(cluster, 9), 9, lambda number: None)
    made, courier = repeats(cluster, 9)

    def disturb(number):
        link = courier.links[number % 2]
        if number % 3 == 0:
            link._call.cancel()
        elif number % 3 == 1:
            say = link.say
            link.say = lambda *words: (setattr(link, "say", say), say(*words), link._call.cancel(), say(*words))[-1]
        else:
            made.breaks += 1

    for left, right in zip(undisturbed, trained(made, courier, 9, disturb), strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_epochs_end_that_was_not_heard_is_told_again(cluster):
    made, courier = repeats(cluster, 1)
    courier.ask()
    link = courier.links[0]
    say = link._call.__class__.__next__
    told = []

    class Deaf:
        """Loses the epoch's end on the way, and the stream with it."""

        def __init__(self, call):
            self._call = call

        def __next__(self):
            answer = say(self._call)
            if pb.ToWorker.FromString(answer).HasField("epoch_over"):
                told.append(answer)
                raise StopIteration
            return answer

        def cancel(self):
            self._call.cancel()

    link._call = Deaf(link._call)
    assert courier.push(pb.Push(batches=[0], samples=1), parts(made, 0)).HasField("epoch_over")
    assert told and made.desks[0].policy.core.version == 1
    link._call.cancel()  # one that was heard is not told again
    asked = threading.Thread(target=courier.ask, daemon=True)
    asked.start()
    asked.join(1.0)
    assert asked.is_alive(), "it waits for the next epoch"
    for desk in made.desks:
        desk.finish()
    asked.join()
    courier.close()


def test_the_session_of_a_worker_that_is_gone_may_open_late(cluster):
    """At a shard that follows, behind that of its replacement: it takes nothing from that."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), 2, rule="asgd")
    made.start(0)
    follower = made.desks[1]
    made.desks[0].lose(0, 0)
    courier = made.courier(incarnation=1)
    assert follower.open(0, 8, 0).get(timeout=10) is None, "refused"
    open_, opened = follower.open, []
    follower.open = lambda *words: opened.append(words) or open_(*words)
    answer = courier.ask()
    for number in range(3):
        answer = courier.push(pb.Push(batches=answer.weights.batches, samples=1), parts(made, number))
    assert not opened, "the replacement's own session lasts"
    courier.close()


def test_a_job_that_is_over_is_not_waited_for(cluster):
    made = cluster(make_model(keras.optimizers.SGD(0.1)))
    made.spec = dataclasses.replace(made.spec, id="next")
    made._desk(0, 1, 1)
    with pytest.raises(grpc.RpcError, match="must name this server's job. Received: j"):
        made.courier()


def test_a_call_without_the_token_is_refused(cluster):
    import grpc

    made = cluster(make_model(keras.optimizers.SGD(1.0)))
    made.token = "wrong"
    with pytest.raises(grpc.RpcError, match="token"):
        made.courier()


def test_bytes_are_shared_out_evenly():
    assert owners([100, 10, 10, 10], 2) == [0, 1, 1, 1]
    assert owners([5, 5, 5, 5], 2) == [0, 1, 0, 1]
    assert owners([7], 3) == [0]


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
def test_what_cannot_be_split_is_refused(optimizer):
    trainable = Trainable(named("keras"), make_model(optimizer()))
    own(trainable, 0, 1)
    with pytest.raises(UserError, match="--ps must be 1"):
        own(trainable, 0, 2)


@pytest.mark.parametrize(
    "first",
    [
        b"\xff\xff\xff",
        b"",
        pb.ToServer(next=pb.Next()).SerializeToString(),
        pb.ToServer(hello=pb.Hello(job="j", worker=1)).SerializeToString(),
        pb.ToServer(hello=pb.Hello(job="j", worker=2**32 - 1)).SerializeToString(),
        pb.ToServer(hello=pb.Hello(job="j", push_file="../../etc/passwd", pull_file="x")).SerializeToString(),
        pb.ToServer(hello=pb.Hello(job="j", push_file="nothing", pull_file="nothing")).SerializeToString(),
    ],
)
def test_what_cannot_be_a_session_is_refused_and_harms_nobody(cluster, first, monkeypatch):
    """`_failed` of the cluster would raise, and the job would end."""
    monkeypatch.setattr("nfdt.server.service.SETUP_S", 0.1)  # a job's name that is none is waited for
    served = cluster(make_model(keras.optimizers.SGD(0.1)))
    courier = served.courier()
    with open_channel(served.addresses[0]) as channel:
        call = channel.stream_stream("/nfdt.rpc.ParameterServer/Session")
        metadata = (("authorization", f"Bearer {served.token}"),)
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([first]), metadata=metadata, timeout=60))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([first]), timeout=60))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    served.start(0)
    assert courier.ask().HasField("weights"), "the worker goes on"
    courier.close()


@pytest.mark.parametrize("rule", ["ddc_asgd", "dc_asgd_a", "ssgd"])
def test_a_checkpoint_restores_all_that_decides(cluster, rule):
    """Saved in the midst of an epoch, then restored into a new desk: it goes on as the first one does."""

    def push(made, courier, number):
        batches = courier.ask().weights.batches
        courier.push(pb.Push(batches=batches, samples=1), parts(made, number))

    made = cluster(make_model(keras.optimizers.Adam(0.1)), workers=2, rule=rule, steps=6, restarts="1")
    made.start(0)
    courier = made.courier()
    push(made, courier, 1)
    made.desks[0].checkpoint()
    saved = made.events.pop().checkpoint
    assert (saved.number, saved.epoch, saved.running) == (1, 0, True)
    push(made, courier, 2)
    before, first = made.desks[0].job.trainable.model_arrays(), made.desks[0]
    first.close()
    made.desks = [made._desk(0, 1, 2)]
    made.desks[0].restore(saved.state)
    push(made, courier, 2)  # by a session that ended with the first desk, and begins anew
    for was, now in zip(before, made.desks[0].job.trainable.model_arrays(), strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-6)
    assert made.desks[0].policy.epoch.ledger.done == 2
    courier.close()


def test_a_checkpoint_that_is_cut_short_is_passed_over(cluster, monkeypatch):
    """A server that dies while it writes has told nobody: what counts is the one before."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), restarts="1")
    made.start(0)
    courier = made.courier()
    answer = courier.ask()
    made.desks[0].checkpoint()
    before = [array.copy() for array in made.desks[0].job.trainable.model_arrays()]
    courier.push(pb.Push(batches=answer.weights.batches, samples=1), parts(made, 1))
    pack = tensors.pack_into

    def cut_short(arrays, out):
        pack(arrays[: len(arrays) // 2], out)
        raise SystemExit("killed")

    monkeypatch.setattr(tensors, "pack_into", cut_short)
    with pytest.raises(SystemExit):
        made.desks[0].checkpoint()
    monkeypatch.undo()
    recovery = Recovery(1)
    for event in made.events:
        recovery.keep(0, event.checkpoint)
    (setup,), _ = recovery.restore(made.spec.to_proto())
    made.desks = [made._desk(0, 1, 1)]
    made.desks[0].restore(setup.snapshot)
    for was, now in zip(before, made.desks[0].job.trainable.model_arrays(), strict=True):
        np.testing.assert_array_equal(was, now)
    assert made.desks[0].policy.epoch.ledger.done == 0
    courier.close()


def test_a_worker_that_finds_no_room_goes_on_by_streams(cluster, monkeypatch, capsys):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), 2)

    def full(file, offset, nbytes):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("nfdt.transport.buffers.os.posix_fallocate", full)
    made.start(0)
    courier = made.courier()
    answer = courier.ask()
    assert courier.push(pb.Push(batches=answer.weights.batches, samples=1), parts(made, 0)).weights.nbytes
    assert "tensors go by streams, not by shared memory" in capsys.readouterr().err
    assert not [file for file in made.blobs.directory.iterdir() if len(file.name) == 16 and not file.stat().st_size]
    courier.close()


def test_a_checkpoint_that_finds_no_room_is_left_out(cluster, monkeypatch, capsys):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), restarts="1")
    made.start(0)

    def full(arrays):
        raise UserError("/dev/shm must have room for 10 bytes more. Received: no space left on device")

    monkeypatch.setattr(made.blobs, "put_arrays", full)
    made.desks[0].checkpoint()
    assert not made.events and "no checkpoint: /dev/shm must have room" in capsys.readouterr().err


def test_a_server_that_dies_before_its_welcome_leaves_no_files(tmp_path, monkeypatch):
    link = Link("unix:/nowhere.sock", "token", pb.Hello(job="j"), Layout([((4,), "float32")], [], []), tmp_path)
    seen = []

    def dying(messages):
        seen.append(len(list(tmp_path.iterdir())))
        return iter(())

    call = SimpleNamespace(stream_stream=lambda name: lambda messages, **options: dying(messages))
    monkeypatch.setattr(link, "_channel", call)
    with pytest.raises(Interrupted):
        link.open()
    assert seen == [2] and not list(tmp_path.iterdir())
