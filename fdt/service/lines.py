"""What ranks of one host speak by: a stream socket of (words, bytes), and a mapped file for large vectors."""

import json
import mmap
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[Any]

POLL_S = 0.25
_LENGTHS = struct.Struct("<II")  # of the header, of what follows it


class Gone(Exception):
    """The other side is no longer there."""


@dataclass
class Line:
    """One stream socket that carries (header, bytes)."""

    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)

    def say(self, header: dict[str, Any], data: bytes | memoryview = b"") -> None:
        text = json.dumps(header).encode()
        try:
            self.socket.sendall(_LENGTHS.pack(len(text), len(data)) + text + bytes(data))
        except OSError as error:
            raise Gone from error

    def hear(self, idle: Callable[[], None] = lambda: None) -> tuple[dict[str, Any], bytes]:
        """The next message. `idle` is called a few times a second meanwhile, and may raise."""
        text, data = _LENGTHS.unpack(self._exactly(_LENGTHS.size, idle))
        header = json.loads(self._exactly(text, idle))
        return header, self._exactly(data, idle)

    def _exactly(self, count: int, idle: Callable[[], None]) -> bytes:
        while len(self.buffer) < count:
            while not select.select([self.socket], [], [], POLL_S)[0]:
                idle()
            try:
                got = self.socket.recv(1 << 16)
            except OSError as error:
                raise Gone from error
            if not got:
                raise Gone
            self.buffer += got
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken


class Slot:
    """A rank's mapped file, which grows as vectors do. Every rank may map it; one writes it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def write(self, vector: Vector) -> None:
        self._mapped(vector.nbytes)[: vector.nbytes] = vector.view(np.uint8)

    def read(self, like: Vector) -> Vector:
        vector: Vector = self._mapped(like.nbytes)[: like.nbytes].view(like.dtype)
        return vector

    def _mapped(self, nbytes: int) -> Vector:
        if self._map is None or len(self._map) < nbytes:
            with open(self._path, "ab+") as file:
                size = os.fstat(file.fileno()).st_size
                if size < nbytes:
                    size = nbytes
                    os.posix_fallocate(file.fileno(), 0, size)  # a full /dev/shm is an error here, not a bus error
                self._map = mmap.mmap(file.fileno(), size)
        return np.frombuffer(self._map, np.uint8)
