"""A rank at a meeting (fdt/service/meeting.py), other than rank 0, whose meeting it is."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fdt.service.adding import Adding
from fdt.service.lines import Gone, Line, Vector, as_bytes, inline, sent, unpacked

Where = Callable[[], str]  # the script's file and line, for errors

ADDRESS = "meeting.sock"
LEFT_ALONE = 70  # exit code; nobody is left to read it


class Guest:
    """Rank 0 gone means that nobody is left to work for: the process ends.

    `line`: to rank 0, where it is on another host; `alone` is then called in place of that end.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        size: int,
        line: Line | None = None,
        alone: Callable[[], object] = lambda: os._exit(LEFT_ALONE),
    ) -> None:
        self.rank, self.size = rank, size
        self._alone = alone
        self._line = line or _by_socket(directory, rank)
        self._adding = Adding(directory, size)

    def add(self, what: str, vector: Vector, where: Where) -> Vector:
        total = self._added(what, vector, where)
        self._adding.number += 1
        return total

    def _added(self, what: str, vector: Vector, where: Where) -> Vector:
        if inline(vector, self._line):
            _, data = self._ask(what, vector, as_bytes(vector), where)
            return np.array(np.frombuffer(data, vector.dtype))
        self._adding.lay(self.rank, vector)
        header, _ = self._ask(what, vector, b"", where)
        if "there" in header:
            return self._adding.total(range(self.size), vector)
        return np.array(self._adding.laid(0, vector))

    def push(self, header: dict[str, Any], vector: Vector) -> tuple[dict[str, Any], Vector]:
        """Give rank 0 a vector and wait for what it answers."""
        header = {"what": "push", "count": len(vector), "dtype": vector.dtype.str, **header}
        slot = self._adding.slots[self.rank]
        answer, data = self._said(header, sent(vector, self._line, slot))
        return answer, unpacked(answer, data, slot)

    def same(self, what: str, value: Any, where: Where) -> Any:
        header, _ = self._ask(what, np.empty(0, np.uint8), b"", where)
        return header["value"]

    def end(self, said: Any) -> None:
        """Tell what this rank did; it leaves."""
        self._line.say({"what": "end", "value": said, "where": "its end"})

    def close(self) -> None:
        self._line.socket.close()

    def _ask(self, what: str, vector: Vector, data: bytes | memoryview, where: Where) -> tuple[dict[str, Any], bytes]:
        wanted = [what, len(vector), vector.dtype.str, self._adding.number]
        header, given = self._said({"what": wanted, "where": where()}, data)
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
