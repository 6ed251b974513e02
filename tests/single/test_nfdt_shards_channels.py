"""Channels that break, reconnect late, or cannot open: each push is applied once, and other workers are unaffected."""

import dataclasses
import errno
import socket
import threading
from types import SimpleNamespace

import grpc
import keras
import numpy as np
import pytest

from fdt.errors import UserError
from fdt.service import transport
from fdt.service.handlers import StreamBroken
from fdt.service.transport import open_channel
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.transport import EpochOver, Interrupted, grpc_channel
from nfdt.transport.buffers import Layout
from nfdt.transport.grpc_channel import GrpcChannel
from nfdt.worker.lane import LaneChannels
from tests.single.nfdt_cluster import make_model, pushed

pytestmark = pytest.mark.timeout(120)


def test_a_push_repeated_after_the_stream_broke_applies_once(cluster):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), rule="asgd")
    made.start(0)
    channels = made.channels()
    batch = channels.ask()[0].batches
    lose_answer(channels.channels[0])
    answer = channels.push(pushed(made, 0, batch))
    assert answer[0].tensors
    assert made.shard_services[0].scheduler.state.version == 1
    assert int(made.shard_services[0].job.trainable.model.optimizer.iterations) == 1
    channels.close()


def lose_answer(channel):
    """The next answer of a channel is lost, with its stream."""
    answer = channel.answer

    def lost():
        answer()
        channel.answer = answer
        channel._call.cancel()
        return answer()

    channel.answer = lost


def repeats(cluster, steps):
    """One worker, two shards, and an epoch of so many steps that has begun."""
    made = cluster(make_model(keras.optimizers.SGD(0.1, momentum=0.9)), 2, steps=steps, rule="dc_asgd(lam=0.5)")
    channels = made.channels()
    made.start(0)
    return made, channels


def trained(made, channels, steps, disturb):
    """`disturb(number)` is called before each push, and before the last word."""
    answer = channels.ask()
    for number in range(steps):
        assert list(answer[0].batches) == [number]
        disturb(number)
        answer = channels.push(pushed(made, number, [number]))
    assert isinstance(answer, EpochOver)
    result = made.snapshot()
    channels.close()
    return result


def test_links_that_break_anywhere_change_nothing(cluster):
    """Any shard's, in the midst of any exchange, and shard 0's log too: each gradient is applied once, on both."""
    undisturbed = trained(*repeats(cluster, 9), 9, lambda number: None)
    made, channels = repeats(cluster, 9)

    def disturb(number):
        link = channels.channels[number % 2]
        if number % 3 == 0:
            link._call.cancel()
        elif number % 3 == 1:
            lose_answer(link)
        else:
            made.breaks += 1

    for left, right in zip(undisturbed, trained(made, channels, 9, disturb), strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_epochs_end_that_was_not_heard_is_told_again(cluster):
    made, channels = repeats(cluster, 1)
    channels.ask()
    link = channels.channels[0]
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
    assert isinstance(channels.push(pushed(made, 0, [0])), EpochOver)
    assert told and made.shard_services[0].scheduler.state.version == 1
    link._call.cancel()  # one that was heard is not told again
    asked = threading.Thread(target=channels.ask, daemon=True)
    asked.start()
    asked.join(1.0)
    assert asked.is_alive(), "it waits for the next epoch"
    for shard_service in made.shard_services:
        shard_service.finish()
    asked.join()
    channels.close()


def test_the_session_of_a_worker_that_is_gone_may_open_late(cluster):
    """At a shard that follows, behind that of its replacement: it takes nothing from that."""
    made = cluster(make_model(keras.optimizers.SGD(0.1)), 2, rule="asgd")
    made.start(0)
    follower = made.shard_services[1]
    made.shard_services[0].lose(0, 0)
    channels = made.channels(incarnation=1)
    assert follower.open(0, 8, 0).get(timeout=60) is None, "refused"
    open_, opened = follower.open, []
    follower.open = lambda *words: opened.append(words) or open_(*words)
    answer = channels.ask()
    for number in range(3):
        answer = channels.push(pushed(made, number, answer[0].batches))
    assert not opened, "the replacement's own session lasts"
    channels.close()


def test_a_job_that_is_over_is_not_waited_for(cluster):
    made = cluster(make_model(keras.optimizers.SGD(0.1)))
    made.spec = dataclasses.replace(made.spec, id="next")
    made._shard_service(0, 1, 1)
    with pytest.raises(StreamBroken, match="must name the job of this server. Received: j"):
        made.channels()


def test_a_worker_that_is_lost_within_a_push_fails_no_job(cluster):
    """gRPC may end the stream of a killed worker before it reports that the call is over."""
    made, failed = cluster(make_model(keras.optimizers.SGD(0.1)), channel="grpc"), []
    made.services[0]._failed = lambda *error: failed.append(error)
    (lost,) = made.channels().channels
    lost._send(pb.ToServer(push=pb.Push(push=1, nbytes=100)))
    lost._outbox.put(None)
    with pytest.raises(Interrupted):
        lost.answer()
    lost.close()
    made.start(0)
    channels = made.channels(incarnation=1)
    assert channels.ask()[0].tensors and not failed
    channels.close()


def test_a_call_without_the_token_is_refused(cluster):
    made = cluster(make_model(keras.optimizers.SGD(1.0)))
    made.token = "wrong"
    with pytest.raises(StreamBroken, match="token"):
        made.channels()


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
    channels = served.channels()
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
    assert channels.ask()[0].tensors, "the worker goes on"
    channels.close()


def test_a_worker_that_finds_no_room_goes_on_by_streams(cluster, monkeypatch, capsys):
    made = cluster(make_model(keras.optimizers.SGD(1.0)), 2)

    def full(file, offset, nbytes):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("nfdt.transport.buffers.os.posix_fallocate", full)
    made.start(0)
    channels = made.channels()
    answer = channels.ask()
    assert channels.push(pushed(made, 0, answer[0].batches))
    assert all(channel._outgoing is None for channel in channels.channels)
    assert "tensors are sent by streams instead of shared memory" in capsys.readouterr().err
    assert not [file for file in made.blobs.directory.iterdir() if len(file.name) == 16 and not file.stat().st_size]
    channels.close()


def test_a_server_that_dies_before_its_welcome_leaves_no_files(tmp_path, monkeypatch):
    link = GrpcChannel("unix:/nowhere.sock", "token", pb.Hello(job="j"), Layout([((4,), "float32")], [], []), tmp_path)
    seen = []

    class Dying:
        def __init__(self, messages):
            seen.append(len(list(tmp_path.iterdir())))

        def __next__(self):
            raise StopIteration

        def cancel(self):
            pass

    call = SimpleNamespace(stream_stream=lambda name: lambda messages, **options: Dying(messages))
    monkeypatch.setattr(link, "_channel", call)
    with pytest.raises(Interrupted):
        link.open()
    assert seen == [2] and not list(tmp_path.iterdir())


def test_a_server_that_is_gone_for_good_is_named_in_an_error(monkeypatch):
    monkeypatch.setattr(grpc_channel, "WELCOME_S", 0.01)
    link = GrpcChannel("unix:/nowhere.sock", "token", pb.Hello(job="j"), Layout([], [], []), None)
    link._welcomed = True
    with pytest.raises(UserError, match=r"the server at unix:/nowhere.sock does not answer; check the network"):
        LaneChannels([link], [], 0.0)
    link.close()


def test_a_server_whose_host_cannot_be_reached_is_named_before_its_first_welcome(monkeypatch):
    monkeypatch.setattr(grpc_channel, "PONG_S", 0.0)
    monkeypatch.setattr(grpc_channel, "WELCOME_S", 0.0)
    monkeypatch.setenv(transport.EMULATED_VARIABLE, "1")
    tried = []

    def unreachable(address, timeout):
        tried.append(address)
        raise ConnectionRefusedError if len(tried) == 1 else TimeoutError

    monkeypatch.setattr(socket, "create_connection", unreachable)
    link = GrpcChannel("10.77.0.1:7077", "token", pb.Hello(job="j"), Layout([], [], []), None)
    with pytest.raises(UserError, match=r"the server at 10.77.0.1:7077 does not answer; check the network"):
        LaneChannels([link], [], 0.0)
    link.close()
    assert tried[:2] == [("10.77.0.1", 7077)] * 2, "a host that refuses is waited for"
