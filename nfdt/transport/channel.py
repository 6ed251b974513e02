"""A worker's side of its sessions: one ShardChannel per shard, and the LaneChannels that keeps them consistent."""

import contextlib
import queue
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from fdt.errors import UserError
from fdt.security.auth import credentials
from fdt.service.transport import open_channel
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.transport.buffers import Buffer, Layout, chunks, fill

PATIENCE_S = 600.0  # time for the restoration of a server; the engine ends workers that wait in vain
RETRY_S = 0.1
ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
SESSION = "/nfdt.rpc.ParameterServer/Session"
Tensor = Any
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class OutgoingPush:
    """One shard's part of a push: all its trainable gradients (absent ones are None), and the changes of `changed`."""

    gradient: Sequence[Tensor | None]
    changes: Sequence[Tensor] = ()
    changed: Sequence[int] = ()

    def layout(self) -> tuple[list[int], list[int], list[Tensor]]:
        """Return the absent trainable variables, the positions in the push buffer, and the tensors for them."""
        absent = [i for i, g in enumerate(self.gradient) if g is None]
        present = [(i, g) for i, g in enumerate(self.gradient) if g is not None]
        count = len(self.gradient)
        positions = [*(i for i, _ in present), *(count + i for i in self.changed)]
        return absent, positions, [*(g for _, g in present), *self.changes]


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Raise Interrupted in place of every error that means the end of a stream."""
    try:
        yield
    except (grpc.RpcError, StopIteration) as error:
        if isinstance(error, grpc.RpcError) and error.code() not in ENDED:
            raise
        raise Interrupted(f"the connection to a server was interrupted: {error!r}") from None


class Interrupted(Exception):
    """A session has ended: its server has ended, or restarts from a checkpoint."""


class ShardChannel:
    """One stream to one shard. `request` and `open` raise Interrupted when it ends; `open` starts another.

    Args:
        address: Address of the shard.
        token: Token of the run.
        hello: First message of each session.
        layout: Specs of the tensors.
        directory: Directory for shared files; None: tensors use the stream.
    """

    def __init__(self, address: str, token: str, hello: pb.Hello, layout: Layout, directory: Path | None) -> None:
        self._channel = open_channel(address)
        self._token, self._layout, self._directory = token, layout, directory
        self._hello = pb.Hello()
        self._hello.CopyFrom(hello)
        self.bytes_sent = self.bytes_received = 0
        self._call: Any = None
        self._outgoing: Buffer | None = None
        self._incoming: Buffer
        self._generation = 0

    def request(self, message: pb.ToServer, push: OutgoingPush | None = None) -> pb.ToWorker:
        """Send one message and return its answer. Weights of the answer are then available by `pulled`.

        Args:
            message: The message.
            push: Tensors to send with it.

        Raises:
            Interrupted: If the stream ends.
        """
        if self._call is None:
            self.open()
        with interrupted():
            self._outbox.put(self._messages(message, push))
            answer = pb.ToWorker.FromString(next(self._call))
            if answer.HasField("weights"):
                self._receive(answer.weights)
            elif answer.HasField("epoch_over"):
                self._hello.heard = answer.epoch_over.epoch + 1
            return answer

    def pulled(self, positions: Iterable[int]) -> list[Tensor]:
        """Return tensors over the pull buffer, valid until the next message."""
        return [self._incoming.tensors[position] for position in positions]

    def close(self) -> None:
        """Cancel the stream and close the channel."""
        self._cancel()
        self._channel.close()

    def open(self) -> None:
        """Start a new stream. Raises Interrupted if it ends at once."""
        self._cancel()
        with interrupted():
            self._open()

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
        call = self._channel.stream_stream(SESSION)
        self._call = call(self._requests(self._outbox), metadata=credentials(self._token), wait_for_ready=True)
        self._outbox.put([pb.ToServer(hello=hello).SerializeToString()])
        return pb.ToWorker.FromString(next(self._call)).welcome

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

    def _messages(self, message: pb.ToServer, push: OutgoingPush | None) -> Iterable[bytes]:
        if push is None:
            return [message.SerializeToString()]
        absent, positions, tensors = push.layout()
        message.push.absent[:], message.push.changed[:] = absent, list(push.changed)
        if self._outgoing is not None:
            self.bytes_sent += self._outgoing.write(positions, tensors)
            return [message.SerializeToString()]
        message.push.nbytes = sum(int(t.shape.num_elements()) * t.dtype.size for t in tensors)
        self.bytes_sent += message.push.nbytes
        return _followed_by(message.SerializeToString(), chunks(tensors))

    def _receive(self, weights: pb.Weights) -> None:
        parts = self._incoming.parts(weights.positions)
        self.bytes_received += fill(parts, self._call) if weights.nbytes else sum(map(len, parts))


class ParameterServerChannel(Protocol):
    """A worker's connection to one shard: a ShardChannel, or a LocalChannel to a server in this process."""

    bytes_sent: int
    bytes_received: int

    def request(self, message: pb.ToServer, push: OutgoingPush | None = None) -> pb.ToWorker:
        """Send one message and return its answer."""
        ...

    def pulled(self, positions: Iterable[int]) -> list[Tensor]:
        """Return the pulled tensors at `positions` of the pull layout."""
        ...

    def open(self) -> None:
        """Start a session."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class LaneChannels:
    """One lane's connections to all shards.

    A push goes to the other shards before shard 0. Shard 0's answer decides whether they answer. If a session ends, all
    sessions restart and the exchange is repeated whole. A server that has the push already recognises its number; a
    restored server ignores it. Methods raise Interrupted after PATIENCE_S of retries.
    """

    def __init__(self, links: Sequence[ParameterServerChannel]) -> None:
        self._first, *self._followers = links
        self.channels = links
        self._pushes = 0
        self._open = False  # whether every channel is open
        self._retried(lambda: None)

    def ask(self) -> pb.ToWorker:
        """Request weights and batches."""
        return self._retried(lambda: self._complete(self._first.request(pb.ToServer(next=pb.Next()))))

    def end_of_data(self, batch: int) -> pb.ToWorker:
        """Report that batch `batch` does not exist; request weights and batches."""
        end = pb.ToServer(end=pb.EndOfData(batch=batch))
        return self._retried(lambda: self._complete(self._first.request(end)))

    def push(self, message: pb.Push, parts: Sequence[OutgoingPush]) -> pb.ToWorker:
        """Send a push, one of `parts` per shard. The answer is that of the next pull."""
        self._pushes += 1
        message.push = self._pushes
        return self._retried(lambda: self._complete(self._push(message, parts)))

    def _push(self, message: pb.Push, parts: Sequence[OutgoingPush]) -> pb.ToWorker:
        for link, part in zip(self._followers, parts[1:], strict=True):
            staged = pb.ToServer(push=message)
            if not link.request(staged, part).HasField("staged"):
                raise RuntimeError("a server other than the first did not store a push")
        return self._first.request(pb.ToServer(push=message), parts[0])

    def pulled(self) -> list[tuple[list[int], list[Tensor]]]:
        """Return by shard the positions that the last answer filled, and their tensors."""
        return [
            (positions, link.pulled(positions)) for positions, link in zip(self._positions, self.channels, strict=True)
        ]

    def close(self) -> None:
        """End all sessions."""
        for link in self.channels:
            link.close()

    def _retried(self, exchange: Callable[[], Answer]) -> Answer:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                for link in () if self._open else self.channels:
                    link.open()
                self._open = True
                return exchange()
            except Interrupted:
                if time.monotonic() > until:
                    raise
                self._open = False
                time.sleep(RETRY_S)

    def _complete(self, answer: pb.ToWorker) -> pb.ToWorker:
        if answer.HasField("weights"):
            self._positions = [list(answer.weights.positions)]
            wanted = pb.ToServer(next=pb.Next(pull=answer.weights.pull))
            for link in self._followers:
                self._positions.append(list(link.request(wanted).weights.positions))
        return answer


def _followed_by(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
