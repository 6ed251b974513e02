"""Transport between ranks: a stream socket of (JSON header, bytes), and on one host a mapped file for large vectors."""

import errno
import json
import mmap
import os
import queue
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic  # the script sees another `time.monotonic`
from typing import Any

import numpy as np

from fdt.errors import UserError
from fdt.typing import Vector

POLL_S = 0.25
INLINE_BYTES = 32 * 1024  # a larger vector is put into a mapped file
_LENGTHS = struct.Struct("<IQ")  # bytes of the header, bytes of the data after it


UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


class ConnectionLost(Exception):
    """The other side has closed the connection or cannot be reached. `reason` is a clause about it, for errors."""

    def __init__(self, reason: str = "it closed its connection") -> None:
        super().__init__(reason)
        self.reason = reason

    @classmethod
    def by(cls, error: OSError) -> "ConnectionLost":
        """Return the ConnectionLost for a failed call of the socket."""
        return cls("its host does not answer") if error.errno in UNREACHABLE else cls()


@dataclass
class MessageStream:
    """A stream socket for messages of a JSON header and bytes. `remote`: the other side is on another host."""

    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    remote: bool = False

    def send(self, header: dict[str, Any], data: bytes | memoryview = b"") -> None:
        """Send a message. Raises ConnectionLost."""
        text = json.dumps(header).encode()
        try:
            self.socket.sendall(_LENGTHS.pack(len(text), len(data)) + text)
            if data:
                self.socket.sendall(data)
        except OSError as error:
            raise ConnectionLost.by(error) from error

    def receive(
        self, idle: Callable[[], None] = lambda: None, limit: int | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Return the next message.

        Args:
            idle: Called a few times a second while this waits; may raise.
            limit: The most bytes that a message may have.

        Raises:
            ConnectionLost: The connection has ended, or the other side declares a message above `limit`.
        """
        text, data = _LENGTHS.unpack(self._exactly(_LENGTHS.size, idle))
        if limit is not None and text + data > limit:
            raise ConnectionLost
        header = json.loads(self._exactly(text, idle))
        return header, self._exactly(data, idle)

    def readable(self) -> bool:
        """Return whether bytes have arrived."""
        return bool(self.buffer) or self._readable(0.0)

    def _exactly(self, count: int, idle: Callable[[], None]) -> bytes:
        asked = monotonic()
        while len(self.buffer) < count:
            if self._readable(POLL_S):
                self.buffer += self._received()
            if monotonic() - asked >= POLL_S:  # even while single bytes keep arriving
                idle()
                asked = monotonic()
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def _readable(self, timeout_s: float) -> bool:
        """Wait for bytes. TLS may have read bytes from the socket that it has not returned yet."""
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        return bool(pending or select.select([self.socket], [], [], timeout_s)[0])

    def _received(self) -> bytes:
        try:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # Python 3.11's TLS returns b"" for it
            got = self.socket.recv(1 << 16)
        except OSError as raised:
            raise ConnectionLost.by(raised) from raised
        if not got:
            raise ConnectionLost.by(OSError(error, ""))
        return got


class ReadAheadStream(MessageStream):
    """A remote MessageStream whose messages a thread receives as they arrive, and `receive` returns one by one.

    Rank 0 reads its peers only within a collective. Without the thread a large message would fill the connection while
    rank 0 saves a plot, and TCP gives up a receiver that takes no bytes for TCP_USER_TIMEOUT. A peer sends at most two
    messages ahead of rank 0's answer, which bounds the memory.
    """

    def __init__(self, stream: MessageStream) -> None:
        super().__init__(stream.socket, stream.buffer, remote=True)
        self._messages: queue.SimpleQueue[tuple[dict[str, Any], bytes] | ConnectionLost] = queue.SimpleQueue()
        self._lock = threading.Lock()  # a TLS connection takes one call at a time
        threading.Thread(target=self._read, name="read ahead", daemon=True).start()

    def send(self, header: dict[str, Any], data: bytes | memoryview = b"") -> None:
        """Implement MessageStream."""
        with self._lock:
            super().send(header, data)

    def receive(
        self, idle: Callable[[], None] = lambda: None, limit: int | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Implement MessageStream, without a `limit`: the rank has been admitted."""
        while True:
            try:
                message = self._messages.get(timeout=POLL_S)
            except queue.Empty:
                idle()
                continue
            if isinstance(message, ConnectionLost):
                self._messages.put(message)  # for the next call
                raise message
            return message

    def readable(self) -> bool:
        """Return whether a message, or the end of the connection, has arrived."""
        return not self._messages.empty()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(super().receive())
        except ConnectionLost as lost:
            self._messages.put(lost)
        except (OSError, ValueError):  # this side has closed the socket
            self._messages.put(ConnectionLost())
        except Exception as error:  # noqa: BLE001 - such as MemoryError; rank 0 would wait for ever
            self._messages.put(ConnectionLost(f"its message cannot be read: {error!r}"))

    def _received(self) -> bytes:
        with self._lock:
            return super()._received()


class SharedBuffer:
    """A rank's mapped file, which grows with the vectors. Every rank may map it; one rank writes it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def write(self, vector: Vector) -> None:
        """Write a vector at the start of the file."""
        self._mapped(vector.nbytes)[: vector.nbytes] = vector.view(np.uint8)

    def read(self, like: Vector) -> Vector:
        """Return a view of the vector at the start of the file, of the length and dtype of `like`."""
        vector: Vector = self._mapped(like.nbytes)[: like.nbytes].view(like.dtype)
        return vector

    def _mapped(self, nbytes: int) -> Vector:
        if nbytes == 0:
            return np.empty(0, np.uint8)  # an empty file cannot be mapped
        if self._map is None or len(self._map) < nbytes:
            with open(self._path, "ab+") as file:
                size = os.fstat(file.fileno()).st_size
                if size < nbytes:
                    size = nbytes
                    self._make_room(file.fileno(), size)
                self._map = mmap.mmap(file.fileno(), size)
        return np.frombuffer(self._map, np.uint8)

    def _make_room(self, file: int, size: int) -> None:
        """Allocate the file now: a full /dev/shm is an error here instead of a bus error (SIGBUS) later."""
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{self._path.parent} has no room for {size / 1e6:.1f} MB more, which the ranks exchange. "
                "Enlarge it (docker run --shm-size=2g)"
            ) from None


def inline(vector: Vector, line: MessageStream) -> bool:
    """Return whether the vector is sent within the message instead of in a mapped file."""
    return line.remote or vector.nbytes <= INLINE_BYTES


def sent(vector: Vector, line: MessageStream, slot: SharedBuffer) -> bytes | memoryview:
    """Return the bytes to send after the header; none where the vector was written into `slot`."""
    if inline(vector, line):
        return as_bytes(vector)
    slot.write(vector)
    return b""


def as_bytes(vector: Vector) -> memoryview:
    """Return the vector's bytes."""
    return np.ascontiguousarray(vector).view(np.uint8).data


def unpacked(header: dict[str, Any], data: bytes, slot: SharedBuffer) -> Vector:
    """Return a copy of the vector of a push or of its answer."""
    dtype = np.dtype(header["dtype"])
    if len(data) == header["count"] * dtype.itemsize:
        return np.frombuffer(data, dtype)
    return np.array(slot.read(np.empty(header["count"], dtype)))
