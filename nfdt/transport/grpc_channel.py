"""The gRPC channel: one stream per worker and shard, tensors in shared memory or as chunks on the stream."""

import contextlib
import itertools
import queue
import secrets
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fdt.errors import UserError
from fdt.security.auth import credentials
from fdt.service.handlers import StreamBroken
from fdt.service.transport import PONG_S, await_server, open_channel, without_frames
from nfdt.compressors import Compression
from nfdt.model.shards import Ownership
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.transport import Answer, EpochOver, Interrupted, Release, Weights, WorkerGradient
from nfdt.transport.buffers import Buffer, Layout, chunks, fill, nbytes_of
from nfdt.transport.compression import PushEncoder, add_deltas

WELCOME_S = 1.5  # time for a session after another; the first waits until the server has started
ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
SESSION = "/nfdt.rpc.ParameterServer/Session"


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Raise Interrupted in place of every error that means the end of a stream, StreamBroken in place of others."""
    try:
        yield
        return
    except (StopIteration, StreamBroken) as error:
        ended, reason = True, repr(error)
    except grpc.RpcError as error:
        ended, reason = without_frames(error).code() in ENDED, repr(error)
    if ended:
        raise Interrupted(f"the connection to a server was interrupted: {reason}")
    raise StreamBroken(f"the connection to a server has failed: {reason}")


@dataclass(frozen=True)
class GrpcChannels:
    """Connects the lanes of one worker to the shards of one job.

    Attributes:
        addresses: Address of each shard.
        token: Token of the run.
        job: Id of the job.
        incarnation: Number of replacements of this rank's worker in this job.
        directory: Directory for shared files; None: tensors use the stream.
        compression: The job's compressors.
    """

    addresses: Sequence[str]
    token: str
    job: str
    incarnation: int = 0
    directory: Path | None = None
    compression: Compression = field(default_factory=Compression)

    def __call__(self, worker: int, steps: int | None, owned: Sequence[Ownership]) -> list["GrpcChannel"]:
        """Return the channels of lane `worker`."""
        count = -1 if steps is None else steps
        hello = pb.Hello(job=self.job, worker=worker, steps=count, incarnation=self.incarnation)
        return [
            GrpcChannel(address, self.token, hello, Layout.of(shard.part, self.compression), self.directory)
            for address, shard in zip(self.addresses, owned, strict=True)
        ]


class GrpcChannel:
    """A ParameterServerChannel over one stream.

    Args:
        address: Address of the shard.
        token: Token of the run.
        hello: First message of each session.
        layout: Specs of the tensors.
        directory: Directory for shared files; None: tensors use the stream.
    """

    def __init__(self, address: str, token: str, hello: pb.Hello, layout: Layout, directory: Path | None) -> None:
        self._channel, self._address = open_channel(address), address
        self._token, self._layout, self._directory = token, layout, directory
        self._hello = pb.Hello()
        self._hello.CopyFrom(hello)
        self.bytes_sent = self.bytes_received = 0
        self._call: Any = None
        self._welcomed = False  # by the server, in an earlier session
        self._reach_s: float = PONG_S  # time for the server's host to answer
        self._outgoing: Buffer | None = None
        self._incoming: Buffer
        self._generation = 0
        self._encode = PushEncoder(layout).encode if layout.compression.push else None
        self._encoded: tuple[int, list[int], list[Any]] = 0, [], []  # the last push: its number, positions and tensors

    def open(self) -> None:
        """Start a new stream. Raises Interrupted if it ends at once, or the server does not answer."""
        self._cancel()
        try:
            with interrupted():
                self._open()
        except (Interrupted, ConnectionError):
            raise Interrupted(f"the server at {self._address} does not answer") from None

    def ask(self, pull: int = 0) -> None:
        """Request weights and batches."""
        self._send(pb.ToServer(next=pb.Next(pull=pull)))

    def end_of_data(self, batch: int) -> None:
        """Report that batch `batch` does not exist."""
        self._send(pb.ToServer(end=pb.EndOfData(batch=batch)))

    def push(self, number: int, gradient: WorkerGradient) -> None:
        """Send a gradient: absent tensors are named, not sent."""
        absent = [i for i, g in enumerate(gradient.gradient) if g is None]
        if number != self._encoded[0]:  # a retry sends the same bytes
            self._encoded = number, *self._layout.placed(gradient, self._encode)
        _, positions, tensors = self._encoded
        push = pb.Push(
            push=number,
            batches=gradient.batches,
            samples=gradient.samples,
            seconds=gradient.seconds,
            absent=absent,
            changed=gradient.changed,
            decays=gradient.decays,
            logs=gradient.logs,
            log_names=list(gradient.logs),
            metrics=gradient.metrics,
            not_finite=not gradient.finite,
        )
        if self._outgoing is not None:
            self.bytes_sent += self._outgoing.write(positions, tensors)
            self._send(pb.ToServer(push=push))
            return
        push.nbytes = sum(map(nbytes_of, tensors))
        self.bytes_sent += push.nbytes
        self._send(pb.ToServer(push=push), chunks(tensors))

    def answer(self) -> Answer:
        """Wait for the answer. Raises Interrupted if the stream ends."""
        with interrupted():
            answer = pb.ToWorker.FromString(next(self._call))
            kind = answer.WhichOneof("kind")
            if kind == "weights":
                return self._receive(answer.weights)
        if kind == "epoch_over":
            self._hello.heard = answer.epoch_over.epoch + 1
            return EpochOver(self._hello.worker, answer.epoch_over.epoch, self._generation)
        return Release(self._hello.worker) if kind == "released" else None

    def close(self) -> None:
        """Cancel the stream and close the channel."""
        self._cancel()
        self._channel.close()

    def _cancel(self) -> None:
        if self._call is not None:
            self._outbox.put(None)
            self._call.cancel()

    def _open(self) -> None:
        files = self._make_buffers()
        try:
            welcome = self._greeted(files)
        finally:  # both sides have mapped the files, or the session has failed
            for file in files:
                file.unlink(missing_ok=True)
        if not welcome.shared_memory:
            self._outgoing = None
        if welcome.generation != self._generation:  # restored servers may send an epoch's end again
            self._generation, self._hello.heard = welcome.generation, 0

    def _greeted(self, files: Sequence[Path]) -> pb.Welcome:
        hello = pb.Hello()
        hello.CopyFrom(self._hello)
        if files:
            hello.push_file, hello.pull_file = (file.name for file in files)
        self._outbox: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        reach_s, self._reach_s = self._reach_s, WELCOME_S
        if not self._welcomed:
            await_server(self._address, reach_s)
        call = self._channel.stream_stream(SESSION)
        self._call = call(self._requests(self._outbox), metadata=credentials(self._token), wait_for_ready=True)
        self._outbox.put([pb.ToServer(hello=hello).SerializeToString()])
        patience = threading.Timer(WELCOME_S, self._call.cancel)
        if self._welcomed:
            patience.start()
        try:
            welcome = pb.ToWorker.FromString(next(self._call)).welcome
        finally:
            patience.cancel()
        self._welcomed = True
        return welcome

    def _make_buffers(self) -> list[Path]:
        """Create buffers in files shared with the server, or private ones if there is no room for the files."""
        files = [self._directory / secrets.token_hex(8) for _ in range(2)] if self._directory else []
        try:
            if files:
                self._outgoing = Buffer(self._layout.push, files[0], create=True)
                self._incoming = Buffer(self._layout.pull, files[1], create=True)
                return files
        except UserError as error:
            print(f"tensors are sent by streams instead of shared memory: {error}", file=sys.stderr, flush=True)
            files[0].unlink(missing_ok=True)
            self._directory = None
        self._outgoing, self._incoming = None, Buffer(self._layout.pull)
        return []

    @staticmethod
    def _requests(outbox: "queue.SimpleQueue[Iterable[bytes] | None]") -> Iterator[bytes]:
        for messages in iter(outbox.get, None):
            yield from messages

    def _send(self, message: pb.ToServer, tensors: Iterable[bytes] = ()) -> None:
        self._outbox.put(itertools.chain([message.SerializeToString()], tensors))

    def _receive(self, weights: pb.Weights) -> Weights:
        parts = self._incoming.parts(weights.positions)
        self.bytes_received += fill(parts, self._call) if weights.nbytes else sum(map(len, parts))
        positions: Sequence[int] = weights.positions
        if self._layout.compression.pull:
            positions = add_deltas(self._layout, positions, self._incoming)
        tensors = [self._incoming.tensors[position] for position in positions]
        counts = tuple(weights.batches), tuple(weights.ahead), weights.pull, weights.staleness
        return Weights(positions, tensors, weights.epoch, *counts)
