"""Where the ranks of a replica script meet: a Unix socket of rank 0's for words, mapped files for large vectors.

Rank 0 is the process that the user started; it hears every other rank, checks that all are at the same exchange, and
answers. So a rank that asks for something else, or leaves, is named at once instead of hanging the rest. Socket and
files are in a directory that is private to the user; ranks of other hosts come by a door
(fdt/process_group/bootstrap.py), and
their vectors behind their words.

Where all are on one host, most vectors are added by each rank for itself, out of the files
(fdt/process_group/shared_memory.py): it
only has to hear that the others are there.
"""

import contextlib
import functools
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fdt.errors import WorkerError
from fdt.process_group.group import Collectives, Header, Push
from fdt.process_group.peer import ADDRESS, Where
from fdt.process_group.shared_memory import Combined, SharedMemoryAllReduce
from fdt.process_group.streams import (
    INLINE_BYTES,
    POLL_S,
    ConnectionLost,
    MessageStream,
    Vector,
    as_bytes,
    inline,
    sent,
    unpacked,
)

FAILED = "exit code 1"  # an exception of the script's; other codes are its own to choose


class RemotePeers(Protocol):
    """Where ranks of other hosts come in."""

    def take_streams(self) -> list[tuple[int, MessageStream]]:
        """Those that have come since it was asked."""
        ...

    def close(self) -> None: ...


class RootGroup(Collectives):
    """Rank 0's side. `check` is called while it waits and raises WorkerError when a rank's process has ended.

    `listener`: for ranks on other hosts. `where`: returns the script's file and line, for errors.
    """

    rank = 0

    def __init__(
        self,
        directory: Path,
        size: int,
        check: Callable[[], None],
        listener: RemotePeers | None = None,
        where: Where = str,
    ) -> None:
        self.size, self._where = size, where
        self._listener = listener
        self.left: dict[int, Any] = {}  # asynchronous ranks may end before rank 0: what they said
        self._pending: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._received: dict[int, tuple[dict[str, Any], bytes]] = {}  # in the exchange at hand
        self._announced: list[Any] = []  # the last sum of which somebody was told that all others are there
        self.directory = directory
        self._check = check
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(directory / ADDRESS))
        self._listening.listen(size)
        self._streams: dict[int, MessageStream] = {}
        self._shared = SharedMemoryAllReduce(directory, size)

    def _whole(self, combined: Combined, name: str) -> Vector:
        self.sent_bytes += combined.vector.nbytes
        lines = self._peers()
        near = lines and self.serve is None and not any(line.remote for line in lines.values())
        each = near and combined.each and combined.whole.nbytes > INLINE_BYTES
        whole = (self._each_makes if each else self._makes)(combined, name)
        self._shared.number += 1
        return whole

    def _makes(self, combined: Combined, name: str) -> Vector:
        """Made here, and given to all."""
        heard = self._gather(name, combined)
        whole = combined.of([combined.vector, *(self._operand(rank, combined, data) for rank, data in heard)])
        self._send_total(combined, whole)
        return whole

    def _each_makes(self, combined: Combined, name: str) -> Vector:
        """A word to a rank is that all others are there. The last has it before it has come: of two it never waits."""
        *others, last = self._peers().items()
        wanted = self._shared.wanted(name, combined)
        there = {"there": wanted}
        with self._resumable():
            if self._announced != wanted:  # else this one was left, and who was told may have added already
                self._shared.write(0, combined.vector, combined)
                for rank, line in others:
                    self._contribution(rank, line, wanted)
                self._announced = wanted
                with contextlib.suppress(ConnectionLost):  # what it said before is heard yet
                    last[1].send(there)
            for rank, line in (*others, last):
                if rank not in self._received:
                    self._contribution(rank, line, wanted)
        for rank, line in others:
            self._send(rank, line, there)
        return self._shared.total(range(self.size), combined)

    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""
        self._gather(name, None)
        for rank, line in self._peers().items():
            self._send(rank, line, {"value": value})
        return value

    def end(self, timeout: Callable[[], None]) -> list[Any]:
        """What each of the others says at its script's end. Raises WorkerError when one is somewhere else."""
        said = list(self.left.values())
        for rank, line in self._peers().items():
            header, _ = self._receive(rank, line, timeout)
            if header["what"] != "end":
                raise self._failed(_describe_mismatch(rank, header, "rank 0 is at the end of the script"))
            said.append(header["value"])
        return said

    def close(self) -> None:
        for line in self._streams.values():
            line.socket.close()
        self._listening.close()
        if self._listener is not None:
            self._listener.close()

    def _gather(self, name: str, combined: Combined | None) -> list[tuple[int, bytes]]:
        """Everybody's contribution to a collective."""
        wanted = self._shared.wanted(name, combined)
        heard = []
        with self._resumable():
            for rank, line in self._peers().items():
                data = self._contribution(rank, line, wanted)
                if data is not None:
                    heard.append((rank, data))
        return heard

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """An exchange that is left, by a Ctrl-C say, may be tried again: what was said to it is still to be heard."""
        self._received.clear()
        try:
            yield
        except BaseException:
            self._pending |= self._received
            raise

    def _contribution(self, rank: int, line: MessageStream, wanted: Sequence[Any]) -> bytes | None:
        """What a rank brings to the exchange; None: it has left, as it may."""
        header, data = self._received[rank] = self._receive(rank, line, self._check)
        if header["what"] == "end" and self.serve is not None and _exited_by_itself(header["value"]["how"]):
            self.left[rank] = header["value"]
            return None
        if header["what"] != wanted:
            mine = f"rank 0 is at {self._where()} for {_named(wanted, header['what'])}"
            raise self._failed(_describe_mismatch(rank, header, mine, wanted))
        return data

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Implement ReplicaGroup."""
        answers: list[tuple[Vector, Header]] = []
        if self.serve is not None:
            self.serve(Push(0, header, vector, lambda *answer: answers.append(answer)))
        if not answers:
            raise WorkerError(f"rank 0 must answer what it pushes. Received: no answer at {self._where()}")
        return answers[0]

    def pushes(self) -> list[Push]:
        """Implement ReplicaGroup; what else has come is kept for the round that asks for it."""
        pushes = []
        for rank, line in self._peers().items():
            if rank not in self._pending and line.readable():
                header, data = self._receive_any(rank, line, self._check)
                if header["what"] == "push":
                    pushes.append(self._push(rank, header, data))
                else:
                    self._pending[rank] = header, data
        return pushes

    def _push(self, rank: int, header: dict[str, Any], data: bytes) -> Push:
        vector = unpacked(header, data, self._shared.buffers[rank])
        return Push(rank, header["header"], vector, functools.partial(self._answer_push, rank))

    def _answer_push(self, rank: int, vector: Vector, header: Header) -> None:
        """The answer's vector may be longer than the push's."""
        line = self._streams[rank]
        told = {"header": header, "count": len(vector), "dtype": vector.dtype.str}
        self._send(rank, line, told, sent(vector, line, self._shared.buffers[rank]))

    def _receive(self, rank: int, line: MessageStream, idle: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
        """The rank's next word; pushes are served meanwhile, and who serves may hear that word first (`pushes`)."""
        while True:
            header, data = self._pending.pop(rank) if rank in self._pending else self._receive_any(rank, line, idle)
            if header["what"] != "push" or self.serve is None:
                return header, data
            self.serve(self._push(rank, header, data))

    def _receive_any(self, rank: int, line: MessageStream, idle: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
        try:
            return line.receive(idle)
        except ConnectionLost:
            raise self._lost(rank) from None

    def _send(self, rank: int, line: MessageStream, header: dict[str, Any], data: bytes | memoryview = b"") -> None:
        try:
            line.send(header, data)
        except ConnectionLost:
            raise self._lost(rank) from None

    def _lost(self, rank: int) -> WorkerError:
        self._check()  # which may know how
        return WorkerError(f"rank {rank} was lost. Received: the end of its connection")

    def _operand(self, rank: int, combined: Combined, data: bytes) -> Vector:
        like = combined.like(rank)
        there = len(data) == like.nbytes
        return np.frombuffer(data, like.dtype) if there else self._shared.read(rank, like, combined)

    def _send_total(self, combined: Combined, whole: Vector) -> None:
        written = False
        for rank, line in self._peers().items():
            behind = inline(whole, line)
            if not (behind or written):
                self._shared.write(0, whole, combined)
                written = True
            self._send(rank, line, {}, as_bytes(whole) if behind else b"")

    def _peers(self) -> dict[int, MessageStream]:
        """The others, once they have come: their TensorFlow takes as long to import as ours."""
        while len(self._streams) < self.size - 1:
            if self._listener is not None:
                self._streams.update(self._listener.take_streams())
            if select.select([self._listening], [], [], POLL_S)[0]:
                line = MessageStream(self._listening.accept()[0])
                header, _ = line.receive()
                self._streams[header["rank"]] = line
            else:
                self._check()
        return {rank: line for rank, line in sorted(self._streams.items()) if rank not in self.left}

    def _failed(self, message: str) -> WorkerError:
        for line in self._streams.values():
            line.socket.close()
        return WorkerError(message)


def _exited_by_itself(how: str) -> bool:
    return how.startswith("exit code ") and how != FAILED


def _describe_mismatch(rank: int, header: dict[str, Any], mine: str, wanted: Sequence[Any] = ()) -> str:
    ended = header["value"] if header["what"] == "end" else {}
    how = ": ".join(filter(None, (ended.get("how"), ended.get("died_of"))))
    theirs = f"its script has ended ({how})" if ended else f"at {header['where']} for {_named(header['what'], wanted)}"
    return f"all ranks must do the same in the same order. Received: rank {rank}: {theirs}; {mine}"


def _named(wanted: Any, beside: Any) -> str:
    """Told apart from `beside`, which it is not."""
    if wanted == "push":
        return "a push"
    name, count, _, number = wanted
    said = f"{name} ({count:,} numbers)" if count else str(name)
    return f"{said}, sum {number + 1:,}" if list(wanted[:2]) == list(beside[:2]) else said
