"""Rank 0's side of the process group: a Unix socket for messages, mapped files for large vectors.

Rank 0 is the process that the user started. It receives a message from every other rank for each collective, checks
that all ranks call the same one, and answers. So an error names the rank that calls another collective or has ended,
and the other ranks do not hang. The socket and the files are in a directory that is private to the user. Ranks of other
hosts connect to the bootstrap listener (client_shim/replica/bootstrap.py) and send vectors in their messages.

Where all ranks are on one host, each rank computes most results for itself from the mapped files
(fdt/process_group/__init__.py). Messages then only confirm that the other ranks have written theirs.
"""

import contextlib
import functools
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fdt.errors import WorkerError
from fdt.process_group import Collectives, Combined, Header, RankPush, SharedMemoryAllReduce
from fdt.process_group.peer import ADDRESS, Where
from fdt.process_group.readings import Readings, describe_mismatch, exited_by_itself, named
from fdt.process_group.streams import (
    INLINE_BYTES,
    POLL_S,
    ConnectionLost,
    MessageStream,
    as_bytes,
    inline,
    sent,
    unpacked,
)
from fdt.typing import Vector


class RemotePeers(Protocol):
    """The source of connections from ranks of other hosts (BootstrapListener)."""

    def take_streams(self) -> list[tuple[int, MessageStream]]:
        """Return the ranks that have connected since the last call, each with its stream."""

    def close(self) -> None:
        """Stop listening."""


class RootGroup(Collectives):
    """Rank 0's side of the group.

    Args:
        directory: The group's private directory, for the socket and the shared files.
        size: The world size.
        check: Called while rank 0 waits; raises WorkerError when a rank's process has ended.
        listener: Accepts ranks of other hosts; None: all ranks are on this host.
        where: Returns the script's file and line, for errors.
    """

    rank = 0
    _broken = False  # an error has closed the streams
    _readings: Readings

    def __init__(
        self,
        directory: Path,
        size: int,
        check: Callable[[], None],
        listener: RemotePeers | None = None,
        where: Where = str,
    ) -> None:
        self.size, self._where = size, where
        self._listener, self.on_one_host = listener, listener is None
        self.left: dict[int, Any] = {}  # results of asynchronous ranks that ended before rank 0
        self._pending: dict[int, tuple[dict[str, Any], bytes]] = {}
        self._received: dict[int, tuple[dict[str, Any], bytes]] = {}  # in the current collective
        self._announced: list[Any] = []  # the last collective that `_each_makes` announced to a rank as complete
        self.directory = directory
        self._check = check
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(directory / ADDRESS))
        self._listening.listen(size)
        self._streams: dict[int, MessageStream] = {}
        self._shared = SharedMemoryAllReduce(directory, size)
        self._readings = Readings()

    def _whole(self, combined: Combined, name: str) -> Vector:
        self.sent_bytes += combined.vector.nbytes
        lines = self._peers()
        near = lines and self._serve is None and not any(line.remote for line in lines.values())
        each = near and combined.each and combined.whole.nbytes > INLINE_BYTES
        whole = (self._each_makes if each else self._makes)(combined, name)
        self._shared.complete()
        return whole

    def _makes(self, combined: Combined, name: str) -> Vector:
        """Compute the result on rank 0 and send it to all ranks."""
        pieces = self._gather(name, combined)
        whole = combined.of([combined.vector, *(self._operand(rank, combined, data) for rank, data in pieces)])
        self._send_total(combined, whole)
        return whole

    def _each_makes(self, combined: Combined, name: str) -> Vector:
        """Let each rank compute the result, and notify each rank when all other ranks have written their vectors.

        The last rank is notified before its own message arrives: with two ranks it never waits.
        """
        *others, last = self._peers().items()
        wanted = self._shared.wanted(name, combined)
        request = {"there": wanted}
        with self._resumable():
            if self._announced != wanted:  # else this retries an interrupted call: a peer may have its result
                self._shared.write(0, combined.vector, combined)
                for rank, line in others:
                    self._contribution(rank, line, wanted)
                self._announced = wanted
                with contextlib.suppress(ConnectionLost):  # messages that it sent before are still read
                    last[1].send(request)
            for rank, line in (*others, last):
                if rank not in self._received:
                    self._contribution(rank, line, wanted)
        for rank, line in others:
            self._send(rank, line, request)
        return self._shared.total(range(self.size), combined)

    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""
        self._gather(name, None)
        for rank, line in self._peers().items():
            self._send(rank, line, {"value": value})
        return value

    def rank_0_reads(self, place: str, number: Any) -> Any:
        """Implement ReplicaGroup."""
        if self.size > 1:
            self._readings.add(place, number)
            self._receive_arrived(self._streams)
        return number

    def _receive_arrived(self, lines: Mapping[int, MessageStream]) -> None:
        """Receive what has arrived, for the calls that need it. A question is answered when its number is known."""
        for rank, line in lines.items() if not self._broken else ():
            if rank not in self._pending and rank not in self.left and line.readable():
                header, data = self._receive_any(rank, line, self._check)
                if header["what"] == "read":
                    self._readings.ask(rank, header)
                else:
                    self._pending[rank] = header, data
        self._answer()

    def _answer(self, *, complete: bool = False) -> None:
        for rank, answer in self._readings.answers(complete=complete):
            self._send(rank, self._streams[rank], answer)

    def end(self, on_wait: Callable[[], None]) -> list[Any]:
        """Return each other rank's result, sent at its script's end. `on_wait` is called while it waits, and may raise.

        Raises WorkerError when a rank is not at its script's end.
        """
        results = list(self.left.values())
        for rank, line in self._peers().items():
            header, _ = self._receive(rank, line, on_wait)
            if header["what"] != "end":
                raise self._failed(rank, header, "rank 0 has ended the script")
            results.append(header["value"])
        return results

    def close(self) -> None:
        """Close all streams and stop listening."""
        for line in self._streams.values():
            line.socket.close()
        self._listening.close()
        if self._listener is not None:
            self._listener.close()

    def _gather(self, name: str, combined: Combined | None) -> list[tuple[int, bytes]]:
        """Return each rank's contribution to a collective."""
        wanted = self._shared.wanted(name, combined)
        messages = []
        with self._resumable():
            for rank, line in self._peers().items():
                data = self._contribution(rank, line, wanted)
                if data is not None:
                    messages.append((rank, data))
        self._readings.clear()
        return messages

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Allow a retry after an interrupted collective, for example by Ctrl-C: keep the messages received so far."""
        self._received.clear()
        try:
            yield
        except BaseException:
            self._pending |= self._received
            raise

    def _contribution(self, rank: int, line: MessageStream, wanted: Sequence[Any]) -> bytes | None:
        """Return the bytes that a rank sends for the collective, or None where it has ended and may do so."""
        header, data = self._received[rank] = self._receive(rank, line, self._check)
        if header["what"] == "end" and self._serve is not None and exited_by_itself(header["value"]["how"]):
            self.left[rank] = header["value"]
            return None
        if header["what"] != wanted:
            mine = f"rank 0 calls {named(wanted, header['what'])} at {self._where()}"
            raise self._failed(rank, header, mine, wanted)
        return data

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Implement ReplicaGroup."""
        answers: list[tuple[Vector, Header]] = []
        if self._serve is not None:
            self._serve(RankPush(0, header, vector, lambda *answer: answers.append(answer)))
        if not answers:
            raise WorkerError(f"rank 0 pushed at {self._where()} and got no answer")
        return answers[0]

    def pushes(self) -> list[RankPush]:
        """Implement ReplicaGroup. Other messages are kept for the collective that they belong to."""
        self._receive_arrived(self._peers())
        pushing = [rank for rank, (header, _) in self._pending.items() if header["what"] == "push"]
        return [self._push(rank, *self._pending.pop(rank)) for rank in pushing]

    def _push(self, rank: int, header: dict[str, Any], data: bytes) -> RankPush:
        vector = unpacked(header, data, self._shared.buffers[rank])
        return RankPush(rank, header["header"], vector, functools.partial(self._answer_push, rank))

    def _answer_push(self, rank: int, vector: Vector, header: Header) -> None:
        """Send a push's answer, whose vector may be longer than the push's."""
        line = self._streams[rank]
        answer = {"header": header, "count": len(vector), "dtype": vector.dtype.str}
        self._send(rank, line, answer, sent(vector, line, self._shared.buffers[rank]))

    def _receive(self, rank: int, line: MessageStream, idle: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
        """Return the rank's next message other than a push. Pushes are served meanwhile.

        A call of `_serve` may receive that message first, through `pushes`, and leave it in `_pending`.
        """
        while True:
            self._answer(complete=True)
            header, data = self._pending.pop(rank) if rank in self._pending else self._receive_any(rank, line, idle)
            if header["what"] == "read":
                self._readings.ask(rank, header)
            elif header["what"] != "push" or self._serve is None:
                return header, data
            else:
                self._serve(self._push(rank, header, data))

    def _receive_any(self, rank: int, line: MessageStream, idle: Callable[[], None]) -> tuple[dict[str, Any], bytes]:
        try:
            return line.receive(idle)
        except ConnectionLost as lost:
            raise self._lost(rank, lost) from None

    def _send(self, rank: int, line: MessageStream, header: dict[str, Any], data: bytes | memoryview = b"") -> None:
        try:
            line.send(header, data)
        except ConnectionLost as lost:
            raise self._lost(rank, lost) from None

    def _lost(self, rank: int, lost: ConnectionLost) -> WorkerError:
        self._check()  # raises an error that states how the process ended, if it has
        return WorkerError(f"rank {rank} was lost: {lost.reason}")

    def _operand(self, rank: int, combined: Combined, data: bytes) -> Vector:
        like = combined.like(rank)
        complete = len(data) == like.nbytes
        return np.frombuffer(data, like.dtype) if complete else self._shared.read(rank, like, combined)

    def _send_total(self, combined: Combined, whole: Vector) -> None:
        written = False
        for rank, line in self._peers().items():
            behind = inline(whole, line)
            if not (behind or written):
                self._shared.write(0, whole, combined)
                written = True
            self._send(rank, line, {}, as_bytes(whole) if behind else b"")

    def _peers(self) -> dict[int, MessageStream]:
        """Return the streams of the ranks that have not ended; wait until all have connected.

        Peers need as long as rank 0 does to import TensorFlow.
        """
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

    def _failed(self, rank: int, header: Header, mine: str, wanted: Sequence[Any] = ()) -> WorkerError:
        for line in self._streams.values():
            line.socket.close()
        self._broken = True
        return WorkerError(describe_mismatch(rank, header, mine, wanted, asynchronous=self._serve is not None))
