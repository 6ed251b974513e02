"""A reporter that writes every record as a line of JSON: `records.jsonl` in --log-dir.

Each line has `kind` (job, note, ready, progress, epoch_end, epoch, evaluated, fault, membership, failed, summary),
`time` (seconds since 1970) and the fields of its record, named as in proto/fdt/rpc/session.proto. `epoch` has the logs
that callbacks receive.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from fdt.report import JobSummary, Reporter
from fdt.report.summary import Summary, as_record
from fdt.rpc.session_pb2 import Event

FILE = "records.jsonl"
_KINDS = ("ready", "progress", "epoch_end", "evaluated", "fault", "membership", "failed")


class Jsonl(Reporter):
    """Writes `directory`/records.jsonl, or with `append` adds to it, line by line, so that it can be followed."""

    def __init__(self, directory: Path, workers: int, *, append: bool = False) -> None:
        # noqa: SIM115  closed by `close`
        self._file = open(directory / FILE, "a" if append else "w", buffering=1, encoding="utf-8")
        self._sum = Summary("", workers, "", quiet=True)
        self._job = ""

    def job(self, job: JobSummary) -> None:
        self._job = job.job
        self._sum.job(job)
        self._write("job", {**asdict(job), "options": dict(job.options)})

    def epoch_begin(self, epoch: int) -> None:
        self._sum.epoch_begin(epoch)

    def event(self, event: Event) -> None:
        self._sum.event(event)
        kind = event.WhichOneof("kind")
        if kind in _KINDS:
            self._write(kind, {"rank": event.rank, **_fields(getattr(event, kind))})

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self._write("epoch", {"epoch": epoch, "logs": {name: _plain(value) for name, value in logs.items()}})

    def note(self, text: str) -> None:
        self._write("note", {"text": text})

    def close(self) -> None:
        if not self._file.closed:
            self._write("summary", as_record(self._sum.totals, self._sum.workers))
            self._file.close()

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        record = {"kind": kind, "time": round(time.time(), 3), "job": self._job, **fields}
        self._file.write(json.dumps(record, default=str) + "\n")


def _fields(message: Message) -> dict[str, Any]:
    """Return a message's fields by their .proto names, numbers as numbers, without blobs, which readers cannot use."""
    named: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: _numbers(value) for name, value in named.items() if name not in ("state", "metrics")}


def _numbers(value: Any) -> Any:
    """Convert 64-bit integers back from strings, as protobuf writes them into JSON."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _plain(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
