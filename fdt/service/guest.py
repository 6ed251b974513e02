"""A rank at a meeting (fdt/service/meeting.py), other than rank 0, whose meeting it is."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fdt.service.adding import Adding, Combined
from fdt.service.group import Collectives, Header, Push
from fdt.service.lines import Gone, Line, Vector, as_bytes, inline, sent, unpacked

Where = Callable[[], str]  # the script's file and line, for errors

ADDRESS = "meeting.sock"
LEFT_ALONE = 70  # exit code; nobody is left to read it


class Guest(Collectives):
    """Rank 0 gone means that nobody is left to work for: the process ends.

    `line`: to rank 0, where it is on another host; `alone` is then called in place of that end. `where`: as Host's.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        size: int,
        line: Line | None = None,
        alone: Callable[[], object] = lambda: os._exit(LEFT_ALONE),
        where: Where = str,
    ) -> None:
        self.rank, self.size, self._where = rank, size, where
        self._alone = alone
        self._line = line or _by_socket(directory, rank)
        self._adding = Adding(directory, size)

    def _whole(self, combined: Combined, name: str) -> Vector:
        self.sent_bytes += combined.vector.nbytes
        whole = self._made(combined, name)
        self._adding.number += 1
        return whole

    def _made(self, combined: Combined, name: str) -> Vector:
        if inline(combined.whole, self._line):
            _, data = self._ask(name, combined, as_bytes(combined.vector))
            return np.array(np.frombuffer(data, combined.whole.dtype))
        self._adding.lay(self.rank, combined.vector, combined)
        header, _ = self._ask(name, combined)
        if "there" in header:
            return self._adding.total(range(self.size), combined)
        return np.array(self._adding.laid(0, combined.whole, combined))

    def push_pull(self, vector: Vector, header: Header) -> tuple[Vector, Header]:
        """Implement ReplicaGroup."""
        self.sent_bytes += vector.nbytes
        told = {"what": "push", "header": header, "count": len(vector), "dtype": vector.dtype.str}
        slot = self._adding.slots[self.rank]
        answer, data = self._said({**told, "where": self._where()}, sent(vector, self._line, slot))
        return unpacked(answer, data, slot), answer["header"]

    def pushes(self) -> list[Push]:
        """Implement ReplicaGroup: pushes go to rank 0."""
        return []

    def broadcast(self, value: Any, name: str) -> Any:
        """Implement ReplicaGroup."""
        header, _ = self._ask(name, None)
        return header["value"]

    def end(self, said: Any) -> None:
        """Tell what this rank did; it leaves."""
        self._line.say({"what": "end", "value": said, "where": "its end"})

    def close(self) -> None:
        self._line.socket.close()

    def _ask(
        self, name: str, combined: Combined | None, data: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        wanted = self._adding.wanted(name, combined)
        header, given = self._said({"what": wanted, "where": self._where()}, data)
        while header.get("there", wanted) != wanted:  # rank 0 is elsewhere; as soon as it hears us it ends the line
            header, given = self._heard()
        return header, given

    def _said(self, header: dict[str, Any], data: bytes | memoryview) -> tuple[dict[str, Any], bytes]:
        try:
            self._line.say(header, data)
        except Gone:
            self._alone()
            raise
        return self._heard()

    def _heard(self) -> tuple[dict[str, Any], bytes]:
        try:
            return self._line.hear()
        except Gone:
            self._alone()
            raise


def _by_socket(directory: Path, rank: int) -> Line:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(directory / ADDRESS))
    line = Line(connection)
    line.say({"rank": rank})
    return line
