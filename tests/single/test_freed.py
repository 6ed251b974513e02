"""What a broken stream and an ended engine leave: nothing, without a garbage collection.

A server lives for weeks, and the collector looks at its old objects seldom: what only it can free is lost for hours.
"""

import fnmatch
import gc
import queue
import threading
import types
import weakref

import grpc
import keras
import pytest

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Attached, Event
from fdt.rpc.tensor_pb2 import BlobRef, Chunk
from fdt.rpc.training_pb2 import HelloRequest
from fdt.security.auth import credentials
from fdt.service.blobs import RemoteBlobs
from fdt.service.client import Conversation
from fdt.service.handlers import StreamBroken, ThreadPerCall
from fdt.service.transport import bind, new_server, open_channel, stop_server
from fdt.supervise.joining import JoinConnection, JoinEndpoint, JoinListener, admit_workers
from fdt.supervise.worker_registry import WorkerRegistry
from nfdt.engine import NfdtEngine
from nfdt.server import service
from nfdt.transport import Interrupted
from tests.single.nfdt_cluster import clusters, make_model, pushed

pytestmark = pytest.mark.timeout(120)
TOKEN, WITHIN_S = "secret", 20


@pytest.fixture(autouse=True)
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def store():
    blobs = LocalBlobs.create()
    yield blobs
    blobs.close()


@pytest.fixture
def serving(tmp_path):
    """Serves handlers, by the method's name, and returns a channel to them."""
    ends = []

    def serve(add, servicer):
        server = new_server(TOKEN)
        add(servicer, server)
        address = bind(server, f"unix:{tmp_path}/socket")
        server.start()
        channel = open_channel(address)
        ends.extend([channel.close, lambda: stop_server(server)])
        return channel

    yield serve
    for end in ends:
        end()


class Received:
    """Stands for the weights that a handler, or a caller, holds."""


class Freed:
    """Whether watched objects are freed."""

    def __init__(self):
        self._watched = []

    def watch(self, thing):
        ended = threading.Event()
        weakref.finalize(thing, ended.set)
        self._watched.append(ended)
        return thing

    def __bool__(self):
        assert self._watched
        return all(ended.wait(WITHIN_S) for ended in self._watched)


# -- a server's side --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answers", ["stream", "unary"])
@pytest.mark.parametrize("deserialize", [None, Chunk.FromString])
def test_a_handler_whose_stream_breaks_frees_what_it_has_received(serving, answers, deserialize, caplog):
    freed, begun = Freed(), threading.Event()

    def read(requests, context):
        received, over = freed.watch(Received()), threading.Event()
        assert context.add_callback(over.set)
        for _ in requests:
            begun.set()
            over.wait()  # gRPC raises where a message is asked for after the end
        return received

    def stream(requests, context):
        yield read(requests, context)

    handler = getattr(grpc, f"stream_{answers}_rpc_method_handler")(
        {"unary": read, "stream": stream}[answers], deserialize
    )
    generic = grpc.method_handlers_generic_handler("test", {"Call": handler})
    channel = serving(lambda _, server: server.add_generic_rpc_handlers((generic,)), None)
    outgoing = queue.SimpleQueue()
    outgoing.put(b"")
    requests = iter(outgoing.get, None)
    if answers == "stream":
        call = channel.stream_stream("/test/Call")(requests, metadata=credentials(TOKEN))
    else:
        call = channel.stream_unary("/test/Call").future(requests, metadata=credentials(TOKEN))
    assert begun.wait(WITHIN_S)
    call.cancel()
    outgoing.put(None)
    assert freed
    assert not caplog.records, "gRPC logs no error of the handler"


def test_a_parameter_server_frees_the_session_of_a_lost_worker(tmp_path, monkeypatch):
    freed, begun = Freed(), threading.Event()

    class Watched(service.WorkerStream):
        def __init__(self, *given):
            super().__init__(*given)
            freed.watch(self)
            self.over = threading.Event()

        def end(self):
            super().end()
            self.over.set()

        def _gradient(self, push, requests):
            begun.set()
            self.over.wait()  # before the tensors are asked for
            return super()._gradient(push, requests)

    monkeypatch.setattr(service, "WorkerStream", Watched)
    with clusters(tmp_path) as make:
        made = make(make_model(keras.optimizers.SGD(0.1)), channel="grpc")
        channels = made.channels()
        made.start(0)
        (channel,) = channels.channels
        channel.push(1, pushed(made, 0, channels.ask()[0].batches))
        assert begun.wait(WITHIN_S)
        channel._call.cancel()  # as a process that is killed: it closes no stream
        assert freed
        channels.close()


def test_the_registry_frees_the_stream_of_a_lost_worker(tmp_path, store):
    freed, outgoing, inbox, over = Freed(), queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
    registry = WorkerRegistry("nfdt", tmp_path, store, {"worker": 1})
    read, ended = registry._read, registry._ended
    registry._read = lambda role, rank, events, *rest: read(role, rank, freed.watch(events), *rest)
    registry._ended = lambda *given: over.set() or ended(*given)
    registry.inbox = types.SimpleNamespace(put=lambda message: inbox.put(message) or over.wait())
    with open_channel(registry.address) as channel:
        requests = iter(outgoing.get, None)
        call = training_pb2_grpc.MemberServiceStub(channel).Attach(requests, metadata=credentials(registry.token))
        outgoing.put(Event(attached=Attached(role="worker", rank=0)))
        outgoing.put(Event(job="j"))
        assert inbox.get(timeout=WITHIN_S).what.job == "j"
        call.cancel()
        outgoing.put(None)
        assert freed
    registry.close()


# -- a caller's side --------------------------------------------------------------------------------------------------
class Breaks(training_pb2_grpc.BlobServiceServicer, training_pb2_grpc.TrainingServiceServicer):
    """Each stream breaks after its first message."""

    def __init__(self, code):
        self._code = code

    def Get(self, request, context):
        yield Chunk(data=b"some")
        context.abort(self._code, "on purpose")

    def Train(self, request_iterator, context):
        yield Event(job="j")
        context.abort(self._code, "on purpose")


@pytest.mark.parametrize(
    ("code", "raised"), [(grpc.StatusCode.NOT_FOUND, KeyError), (grpc.StatusCode.UNAVAILABLE, StreamBroken)]
)
def test_a_blob_that_is_received_in_part_is_freed(serving, code, raised):
    freed = Freed()
    blobs = RemoteBlobs(serving(training_pb2_grpc.add_BlobServiceServicer_to_server, Breaks(code)), credentials(TOKEN))
    get = blobs._stub.Get
    blobs._stub.Get = lambda *given, **options: freed.watch(get(*given, **options))
    with pytest.raises(raised):
        blobs.get(BlobRef(id="x"))
    assert freed


def test_a_client_frees_the_call_of_a_job_whose_engine_is_lost(serving):
    freed = Freed()
    channel = serving(training_pb2_grpc.add_TrainingServiceServicer_to_server, Breaks(grpc.StatusCode.UNAVAILABLE))
    talk = Conversation(training_pb2_grpc.TrainingServiceStub(channel), credentials(TOKEN))
    freed.watch(talk._stream)
    with pytest.raises(UserError, match="was lost while it trained: on purpose"):
        list(talk.events())
    del talk
    assert freed


def test_a_worker_frees_the_sessions_that_its_server_has_ended(tmp_path):
    freed = Freed()
    with clusters(tmp_path) as make:
        made = make(make_model(keras.optimizers.SGD(0.1)), channel="grpc")
        channels = made.channels()
        made.start(0)
        channels.ask()
        (channel,) = channels.channels
        freed.watch(channel._call)
        made.services[0]._server.stop(grace=None)
        channel.ask()
        with pytest.raises(Interrupted):
            channel.answer()
        channel.close()
        channel._call = None
        assert freed


def test_an_elastic_worker_frees_the_call_of_its_membership(tmp_path, store):
    freed = Freed()
    registry = WorkerRegistry("nfdt", tmp_path, store, {"worker": 1})
    listener = JoinListener(JoinEndpoint("127.0.0.1:0", TOKEN), tmp_path, admit_workers(registry, 1, None), "nfdt")
    connection = JoinConnection(listener.address, TOKEN, None, 1, "nfdt")
    freed.watch(connection._call)
    connection.close()
    assert connection.over.wait(WITHIN_S)
    del connection
    assert freed
    listener.close()
    registry.close()


# -- engines ----------------------------------------------------------------------------------------------------------
def test_an_ended_engine_leaves_no_server_and_no_thread(tmp_path):
    before, freed = {*threading.enumerate()}, Freed()
    engine = NfdtEngine(2, tmp_path, join_endpoint=JoinEndpoint("127.0.0.1:0", TOKEN))
    registry, listener = engine._supervisor.registry, engine.reception
    servers = [freed.watch(each._server) for each in (registry, listener)]
    with open_channel(registry.address) as channel:
        stub = training_pb2_grpc.MemberServiceStub(channel)
        assert stub.Hello(HelloRequest(), metadata=credentials(registry.token)).engine == "nfdt"
    del servers
    engine.stop()
    engine.stop()
    assert freed
    assert all(thread.join(WITHIN_S) or not thread.is_alive() for thread in {*threading.enumerate()} - before)


def test_a_server_keeps_no_thread_of_a_call_that_has_ended(serving):
    before, called = {*threading.enumerate()}, []

    def answer(request, context):
        called.append(threading.current_thread())
        return b""

    generic = grpc.method_handlers_generic_handler("test", {"Call": grpc.unary_unary_rpc_method_handler(answer)})
    channel = serving(lambda _, server: server.add_generic_rpc_handlers((generic,)), None)
    channel.unary_unary("/test/Call")(b"", metadata=credentials(TOKEN), timeout=WITHIN_S)
    (thread,) = called
    thread.join(WITHIN_S)
    assert not thread.is_alive() and thread not in before


def test_each_call_has_a_thread_that_ends_with_it():
    pool = ThreadPerCall()
    threads = [pool.submit(threading.current_thread).result(WITHIN_S) for _ in range(3)]
    assert len({*threads}) == 3
    assert all(thread.join(WITHIN_S) or not thread.is_alive() for thread in threads)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(WITHIN_S)


def test_a_store_keeps_nothing_of_a_client_that_has_ended(store):
    """pathlib keeps each pattern of a glob, compiled: 0.7 kB a client."""
    ref, other = (LocalBlobs(store.directory, owner).put(b"x") for owner in ("0a", "0b"))
    before = fnmatch._compile_pattern.cache_info().currsize
    store.drop_of("0a")
    assert not store.holds(ref.id) and store.holds(other.id)
    assert fnmatch._compile_pattern.cache_info().currsize == before
