"""The process group of a rank other than rank 0 (fdt/process_group/root.py has rank 0's)."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fdt.process_group import Collectives, Combined, Header, RankPush, SharedMemoryAllReduce
from fdt.process_group.readings import AskedReadings
from fdt.process_group.streams import ConnectionLost, MessageStream, as_bytes, inline, sent, unpacked
from fdt.typing import Vector

Where = Callable[[], str]  # returns the script's file and line, for errors

ADDRESS = "meeting.sock"
EXIT_ROOT_LOST = 70  # exit code; no process of the run is left to read it


class PeerGroup(Collectives):
    """A peer's side of the group. When rank 0 is lost, the process ends: its work has no receiver.

    Args:
        directory: The group's private directory, with rank 0's socket and the shared files.
        rank: This process's rank, 1 or higher.
        size: The world size.
        line: The stream to rank 0 where rank 0 is on another host; otherwise the socket in `directory` is used.
        alone: Called when rank 0 is lost.
        where: Returns the script's file and line, for errors.
    """

    _readings: AskedReadings

    def __init__(
        self,
        directory: Path,
        rank: int,
        size: int,
        line: MessageStream | None = None,
        alone: Callable[[], object] = lambda: os._exit(EXIT_ROOT_LOST),
        where: Where = str,
    ) -> None:
        self.rank, self.size, self._where = rank, size, where
        self._on_root_lost = alone
        self._stream = line or _connected(directory, rank)
        self._shared = SharedMemoryAllReduce(directory, size)
        self._readings = AskedReadings()

    def _whole(self, combined: Combined, name: str) -> Vector:
        self.sent_bytes += combined.vector.nbytes
        whole = self._made(combined, name)
        self._shared.complete()
        return whole

    def _made(self, combined: Combined, name: str) -> Vector:
        if inline(combined.whole, self._stream):
            _, data = self._exchange(name, combined, as_bytes(combined.vector))
            return np.array(np.frombuffer(data, combined.whole.dtype))
        self._shared.write(self.rank, combined.vector, combined)
        header, _ = self._exchange(name, combined)
        if "there" in header:
            return self._shared.total(range(self.size), combined)
        return np.array(self._shared.read(0, combined.whole, combined))

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Implement ReplicaGroup."""
        self.sent_bytes += vector.nbytes
        message = {"what": "push", "header": header, "count": len(vector), "dtype": vector.dtype.str}
        slot = self._shared.buffers[self.rank]
        answer, data = self._request({**message, "where": self._where()}, sent(vector, self._stream, slot))
        return unpacked(answer, data, slot), answer["header"]

    def rank_0_reads(self, place: str, number: Any) -> Any:
        """Implement ReplicaGroup."""
        n, passed = self._readings.count(place), False
        while not (found := self._readings.pop(place, n)) and not passed:
            answer, _ = self._request(self._readings.question(place, n), b"")
            self._readings.take(answer)
            passed = answer["passed"]
        return found[0] if found else number

    def pushes(self) -> list[RankPush]:
        """Implement ReplicaGroup: return none, as pushes go to rank 0."""
        return []

    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""
        header, _ = self._exchange(name, None)
        return header["value"]

    def end(self, result: Any) -> None:
        """Send rank 0 this rank's result, `result`. The rank then leaves the group."""
        self._stream.send({"what": "end", "value": result, "where": "the script's end"})

    def close(self) -> None:
        """Close the stream to rank 0."""
        self._stream.socket.close()

    def _exchange(
        self, name: str, combined: Combined | None, data: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        wanted = self._shared.wanted(name, combined)
        header, given = self._request({"what": wanted, "where": self._where()}, data)
        while header.get("there", wanted) != wanted:  # rank 0 is at another collective and will close the stream
            header, given = self._receive()
        self._readings.clear()
        return header, given

    def _request(self, header: dict[str, Any], data: bytes | memoryview) -> tuple[dict[str, Any], bytes]:
        try:
            self._stream.send(header, data)
        except ConnectionLost:
            self._on_root_lost()
            raise
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            return self._stream.receive()
        except ConnectionLost:
            self._on_root_lost()
            raise


def _connected(directory: Path, rank: int) -> MessageStream:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(directory / ADDRESS))
    line = MessageStream(connection)
    line.send({"rank": rank})
    return line
