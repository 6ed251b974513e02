"""The files of one run: records.jsonl, read as it grows, and beside it verify.json and the trace of --timeline."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from client_shim.verify.plan import VERDICT
from fdt.report import quantity
from fdt.runs import ProcessIdentity, space
from frontends.report import FILE
from frontends.report.run_data import RunData

BLOCK_BYTES = 1 << 20
HEAD_BYTES = 256  # of the first record, which has the run's time
TRACE_END_BYTES = 1 << 16  # a trace's last line, with the sums
LONGEST_LINE = 1 << 24  # bytes of a record that is read
NO_END = "the run has ended without a record of it: was it killed?"


class RunReader:
    """Reads a run's records. `update` reads what was appended since.

    Args:
        directory: The directory of records.jsonl, --log-dir or --run-dir.
        name: The run's name on the page.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self._reset()

    def _reset(self) -> None:
        self.data = RunData(self.name)
        self._at, self._lines, self._rest, self._head = 0, 0, b"", b""
        self._malformed, self._first = 0, ""  # lines that are no records; where and why the first is none

    def update(self) -> bool:
        """Read new records. Return whether there were any. Raises OSError where the file cannot be read."""
        with open(self.directory / FILE, "rb") as file:
            head = file.read(HEAD_BYTES)
            if not head.startswith(self._head) or os.fstat(file.fileno()).st_size < self._at:
                self._reset()  # another run writes to this directory
            self._head, before = head, self._at
            file.seek(self._at)
            while block := file.read(BLOCK_BYTES):
                self._at += len(block)
                self._take(block)
        return self._at != before

    def as_json(self) -> dict[str, Any]:
        """Return what the page shows of the run."""
        return {
            **self.data.as_json(),
            **({"state": "lost", "error": NO_END} if self.lost() else {}),
            "directory": str(self.directory),
            "notices": self.notices(),
            "verify": self._verify(),
            "purposes": self._purposes(),
        }

    def notices(self) -> list[str]:
        """Return a line about records that are left out, if any."""
        lines = []
        if self._malformed:
            count = f"{self._malformed} of {quantity(self._lines, 'line')}"
            lines.append(f"{FILE}: {count} left out, as no record of a run; the first is {self._first}")
        if self._rest and (self.data.state != "running" or self.lost()):
            lines.append(f"{FILE}: the last line is truncated and left out")
        return lines

    def _take(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, b"a line that is too long"], b""
        for line in lines:
            self._lines += 1
            try:
                self.data.add(json.loads(line.decode()))
            except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
                self._malformed += 1
                self._first = self._first or f"line {self._lines}, {type(error).__name__}: {error}"[:200]

    def lost(self) -> bool:
        """Return whether the run's process, one of this machine, has ended without a record of its end."""
        about, process = self.data.about, self.data.about.get("process")
        if self.data.state != "running" or not process or not about.get("space") == space() != "":
            return False
        with contextlib.suppress(KeyError, TypeError):
            return not ProcessIdentity(process["pid"], process["started"]).alive()
        return False

    def _verify(self) -> Any:
        try:
            found = json.loads((self.directory / VERDICT).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("steps"), list) else None

    def _purposes(self) -> list[dict[str, Any]]:
        """Return where each worker's time went: from the trace, else from the records (computing or not)."""
        rank_of = {f"worker {rank}": worker for rank, worker in self.data.workers.items()}
        traced = seconds_of_trace(str(self.data.about.get("timeline") or ""))
        if traced:
            return [{"worker": name, **traced[name]} for name in sorted(traced, key=lambda name: (len(name), name))]
        return [
            {
                "worker": name,
                "compute": worker.totals["busy_seconds"],
                "exchange and waiting": max(0.0, worker.totals["seconds"] - worker.totals["busy_seconds"]),
            }
            for name, worker in sorted(rank_of.items(), key=lambda item: item[1].rank)
            if worker.totals["busy_seconds"]
        ]


def seconds_of_trace(path: str) -> dict[str, dict[str, float]]:
    """Return the sums at the end of a trace (fdt/timeline.py): seconds by worker and purpose; {} without any."""
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TRACE_END_BYTES))
            end = file.read()
        found = json.loads(b"{" + end[end.rindex(b'"displayTimeUnit"') :])["otherData"]["seconds"]
        return {str(name): {str(p): float(s) for p, s in sums.items()} for name, sums in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
