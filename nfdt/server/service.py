"""gRPC service of a parameter server: sessions of workers, and the log for the other shards. It decides nothing.

Messages are raw bytes: a protobuf message, followed by the plain tensors that it announces.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from fdt.blobs import LocalBlobs
from fdt.security import auth
from fdt.service.handlers import StreamBroken
from fdt.service.transport import bind, listening_at, new_server
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server import Replies, Send
from nfdt.server.job import ServedJob
from nfdt.transport import EpochOver, Release, WorkerGradient
from nfdt.transport.buffers import Buffer, SessionPulls, chunks, fill, nbytes_of
from nfdt.transport.compression import PullEncoder, PushDecoder

NAME = "nfdt.rpc.ParameterServer"
SETUP_S = 600.0  # longest wait of a session for the build of its job


class AnyShardService(Protocol):
    """Methods that sessions call on a shard's service, shard 0's or another's."""

    job: ServedJob

    def open(self, worker: int, steps: int | None, incarnation: int = 0, ends_received: int = 0) -> Replies: ...
    def ask(self, worker: int, session: Replies | None = None) -> None: ...
    def push(self, worker: int, number: int, gradient: WorkerGradient, session: Replies | None = None) -> bool: ...
    def end_of_data(self, worker: int, batch: int, session: Replies | None = None) -> None: ...


class Service:
    """Serves the shard service of the current job over gRPC.

    Args:
        blobs: Blob store; shared files lie in its directory.
        token: Token that clients must send.
        address: One or several addresses, separated by commas.
        failed: Called with the error and the traceback of a failed session.
    """

    def __init__(self, blobs: Any, token: str, address: str, failed: Callable[[Exception, str], None]) -> None:
        self._blobs, self._failed = blobs, failed
        self._shard_service: Any = None
        self._over: deque[str] = deque(maxlen=64)  # jobs
        self._changed = threading.Condition()
        self._server = new_server(token, auth.own_identity())
        methods = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "Follow": grpc.unary_stream_rpc_method_handler(self._follow),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))
        self.address = ",".join(bind(self._server, listening_at(one)) for one in address.split(","))
        self._server.start()

    def show(self, shard_service: Any) -> None:
        """Accept sessions for the job of `shard_service`."""
        with self._changed:
            if self._shard_service is not None and self._shard_service.job.spec.id != shard_service.job.spec.id:
                self._over.append(self._shard_service.job.spec.id)
            self._shard_service = shard_service
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the gRPC server."""
        self._server.stop(grace=0.2)

    def _service_of(self, job: str, generation: int = 0) -> Any:
        def is_there() -> bool:
            return (
                self._shard_service is not None
                and self._shard_service.job.spec.id == job
                and self._shard_service.job.generation >= generation
            )

        with self._changed:
            ready = self._changed.wait_for(lambda: job in self._over or is_there(), SETUP_S)
        if not ready or job in self._over:
            raise RuntimeError(f"a session must name the job of this server. Received: {job}")
        return self._shard_service

    def _follow(self, request: bytes, context: Any) -> Iterator[bytes]:
        wanted = pb.FollowRequest.FromString(request)
        shard_service = self._service_of(wanted.job, wanted.generation)
        if shard_service.job.generation != wanted.generation:
            return  # the asking shard must restore too, as this shard did
        log = shard_service.follow(wanted.position)
        try:
            if context.add_callback(lambda: log.put(None)):  # a waiting thread would block the exit of the process
                for entry in iter(log.get, None):
                    yield entry.SerializeToString()
        finally:
            shard_service.unfollow(log)

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        session = self._opened(requests, context)
        try:
            if context.add_callback(session.end):
                yield from session.run(requests)
        except StreamBroken:  # the worker is lost, and perhaps gRPC does not know it yet
            return
        except Exception as error:
            if context.is_active():
                self._failed(error, traceback.format_exc())

    def _opened(self, requests: Iterator[bytes], context: Any) -> "WorkerStream":
        """Open a session, or abort the call. A malformed request affects only its sender."""
        try:
            hello = pb.ToServer.FromString(next(requests, b"")).hello
            directory = self._blobs.directory if isinstance(self._blobs, LocalBlobs) else None
            return WorkerStream(self._service_of(hello.job), hello, directory)
        except (ValueError, OSError, RuntimeError, DecodeError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # abort did


class WorkerStream:
    """One worker's stream. Each message has one answer."""

    def __init__(self, shard_service: AnyShardService, hello: pb.Hello, directory: Path | None) -> None:
        lanes = (shard_service.job.places or shard_service.job.workers) * shard_service.job.lanes
        if hello.worker >= lanes:
            raise ValueError(f"a worker's number must be below {lanes}. Received: {hello.worker}")
        self._shard_service, self._worker = shard_service, hello.worker
        self._layout = shard_service.job.layout
        self.shared = bool(hello.push_file) and directory is not None
        push, pull = (_file(directory, name) if self.shared else None for name in (hello.push_file, hello.pull_file))
        self._incoming = Buffer(self._layout.push, push)
        self._outgoing = Buffer(self._layout.pull, pull) if self.shared else None
        steps = None if hello.steps < 0 else hello.steps
        self._replies = shard_service.open(hello.worker, steps, hello.incarnation, hello.heard)
        self._pulls = SessionPulls()
        compression = self._layout.compression
        self._decode = PushDecoder(self._layout).decode if compression.push else self._layout.uncompressed
        self._deltas = PullEncoder(self._layout) if compression.pull else None

    def end(self) -> None:
        """Wake the thread that waits for a reply: the stream has ended."""
        self._replies.put(None)

    def run(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """Answer the worker's messages until the session ends."""
        welcome = pb.Welcome(shared_memory=self.shared, generation=self._shard_service.job.generation)
        yield pb.ToWorker(welcome=welcome).SerializeToString()
        for raw in requests:
            message = pb.ToServer.FromString(raw)
            if not self._receive(message, requests):
                yield pb.ToWorker(staged=pb.Staged()).SerializeToString()
                continue
            reply = self._replies.get()
            while isinstance(reply, Send) and reply.pull < message.next.pull:  # a reply for an earlier session
                reply = self._replies.get()
            if reply is None:
                return
            yield from self._answer(reply)

    def _receive(self, message: pb.ToServer, requests: Iterator[bytes]) -> bool:
        """Pass a message on. Return True if the answer arrives in the queue."""
        kind = message.WhichOneof("kind")
        if kind == "push":
            gradient = self._gradient(message.push, requests)
            return self._shard_service.push(self._worker, message.push.push, gradient, self._replies)
        if kind == "end":
            self._shard_service.end_of_data(self._worker, message.end.batch, self._replies)
        else:
            self._shard_service.ask(self._worker, self._replies)
        return True

    def _gradient(self, push: pb.Push, requests: Iterator[bytes]) -> WorkerGradient:
        """Return a push: tensors over the receive buffer, valid until the server answers the worker."""
        absent, changed = set(push.absent), tuple(push.changed)
        *gradients, changes = self._layout.pushed_at
        changed_at = [changes[i] for i in changed]
        if push.nbytes:
            present = (p for i, at in enumerate(gradients) if i not in absent for p in at)
            fill(self._incoming.parts([*present, *changed_at]), requests)
        return WorkerGradient(
            [None if i in absent else self._decode(i, self._incoming) for i in range(len(gradients))],
            push.samples,
            push.seconds,
            not push.not_finite,
            tuple(push.batches),
            [self._incoming.tensors[p] for p in changed_at],
            changed,
            tuple(push.decays),
            {name: push.logs[name] for name in push.log_names},
            push.metrics,
        )

    def _answer(self, reply: Send | EpochOver | Release) -> Iterator[bytes]:
        if isinstance(reply, EpochOver):
            yield pb.ToWorker(epoch_over=pb.EpochOver(epoch=reply.epoch)).SerializeToString()
        elif isinstance(reply, Release):
            yield pb.ToWorker(released=pb.Released()).SerializeToString()
        else:
            yield from self._weights(reply)

    def _weights(self, reply: Send) -> Iterator[bytes]:
        positions, tensors = self._pulls.placed(reply.sent, reply.loads)
        if self._deltas:
            positions, tensors = self._deltas.encode(positions, tensors, reply.loads)
        message = pb.Weights(epoch=reply.epoch, batches=reply.batches, ahead=reply.ahead, positions=positions)
        message.pull, message.staleness = reply.pull, reply.staleness
        if self._outgoing is not None:
            self._outgoing.write(positions, tensors)
            yield pb.ToWorker(weights=message).SerializeToString()
        else:
            message.nbytes = sum(nbytes_of(t) for t in tensors)
            yield pb.ToWorker(weights=message).SerializeToString()
            yield from chunks(tensors)


def _file(directory: Path | None, name: str) -> Path:
    if directory is None or not name.replace("-", "").isalnum():
        raise ValueError(f"a shared file must be in the blob directory. Received: {name!r}")
    return directory / name
