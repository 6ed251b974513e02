"""Reporters that write files: records.jsonl in --log-dir, the progress of a detached run, TensorFlow's event files.

TensorFlow is imported with the first values of an event file, when the script has already imported it.
"""

import contextlib
import json
import os
import platform
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from fdt import __version__
from fdt.errors import UserError
from fdt.report import JobSummary, Reporter
from fdt.report.status import Clock, Status
from fdt.report.summary import Summary, as_record
from fdt.rpc.session_pb2 import EpochEnd, Event
from fdt.security import without_links

FILE = "records.jsonl"
_WITHIN_EPOCHS = ("progress", "training")
DISTRIBUTIONS = ("tensorflow", "keras", "tf_keras", "numpy", "horovod", "grpcio")
_KINDS = ("attached", "ready", "progress", "epoch_end", "evaluated", "fault", "membership", "failed")


class Jsonl(Reporter):
    """Writes `directory`/records.jsonl, or with `append` adds to it, line by line, so that it can be followed.

    Args:
        directory: The directory.
        workers: The number of workers.
        append: Continue the file of a run that is resumed.
        about: The record `run`, which comes first: the command, its versions and its host.
        limit: Size of the file in bytes, from which on reports within epochs are left out; 0: none.
    """

    def __init__(
        self,
        directory: Path,
        workers: int,
        *,
        append: bool = False,
        about: Mapping[str, Any] | None = None,
        limit: int = 0,
    ) -> None:
        # noqa: SIM115  closed by `close`
        self._file = open(directory / FILE, "a" if append else "w", buffering=1, encoding="utf-8", opener=without_links)
        self._lock = threading.Lock()
        self._sum = Summary("", workers, "", quiet=True)
        self._job, self._limit = "", limit
        if about is not None:
            with contextlib.suppress(OSError):  # a full disk: the next record fails too, and Reporters notes it
                self._write("run", about)

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

    def training(self, step: int) -> None:
        self._write("training", {"step": step})

    def note(self, text: str) -> None:
        self._write("note", {"text": text})

    def ended(self, code: int, error: str) -> None:
        self._write("end", {"code": code, "error": error})

    def close(self) -> None:
        if not self._file.closed:
            self._write("summary", as_record(self._sum.totals, self._sum.workers))
            self._file.close()

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        record = {"kind": kind, "time": round(time.time(), 3), "job": self._job, **fields}
        line = json.dumps(record, default=str) + "\n"
        with self._lock:  # `training` is called by another thread
            if self._file.closed or (self._limit and kind in _WITHIN_EPOCHS and self._file.tell() > self._limit):
                return
            self._file.write(line)


def describe_run(engine: str, **more: Any) -> dict[str, Any]:
    """Return the fields of the record `run`: versions, the machine, and `more`.

    No module is imported for the versions: they are those of the installed distributions.
    """
    versions = {"hfdt-nfdt": __version__, "python": platform.python_version()}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "engine": engine,
        "cwd": os.getcwd(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": versions,
        **more,
    }


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


NOTE_S = 0.5  # seconds between two records within an epoch


class DetachedReporter(Reporter):
    """Calls `note` with: begun (a step has been trained), at ("3/10", "step 400"), line (a progress bar's text)."""

    def __init__(self, adds_steps: bool, note: Callable[[Mapping[str, Any]], None], clock: Clock = time.monotonic):
        self._status, self._write, self._clock = Status(adds_steps, clock), note, clock
        self._whose = " of worker 0" if adds_steps else ""
        self._fits = self._step = 0
        self._validates = self._begun = False
        self._noted = 0.0

    def job(self, job: JobSummary) -> None:
        self._fits += 1
        self._validates = job.validation
        self._status.job(job)

    def epoch_begin(self, epoch: int) -> None:
        self._status.begin(epoch)
        self._note(self._status.line("starting"))

    def event(self, event: Event) -> None:
        if event.HasField("epoch_end"):
            self._begun = True
            self._note(self._status.line("validating", event.epoch_end.steps) if self._validates else "")
        elif self._status.add(event) and (not self._begun or self._clock() - self._noted >= NOTE_S):
            self._begun = True
            self._note(self._status.line())

    def training(self, step: int) -> None:
        self._begun, self._step = True, step
        self._note("")

    def job_end(self) -> None:
        self._note("")

    def _note(self, line: str) -> None:
        self._noted = self._clock()
        own = f"step {self._step:,}{self._whose}" if self._step else ""  # a script's own loop has no epochs
        behind = f" of fit {self._fits}" if self._fits > 1 else ""
        at = own or (f"{self._status.epoch}{behind}" if self._fits else "")
        self._write({"begun": self._begun, "at": at, "line": line or own})


class TensorBoard(Reporter):
    """Writes event files. Epochs are counted over all `fit`s of the run, and each worker's steps over all epochs.

    Raises:
        UserError: The directory cannot be made or written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise UserError(f"--tensorboard cannot be written: {error}; name another directory") from None
        self._writers: dict[str, Any] = {}
        self._epochs = 0  # ended so far
        self._steps: dict[int, int] = {}  # rank: steps of ended epochs

    def job(self, job: JobSummary) -> None:
        self._epochs = max(self._epochs, job.initial_epoch)

    def event(self, event: Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "progress":
            values = {f"step_{name}": value for name, value in event.progress.logs.items()}
            self._write(f"worker-{event.rank}", values, self._steps.get(event.rank, 0) + event.progress.step)
        elif kind == "epoch_end":
            self._workers(event.epoch_end)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        trained = {f"epoch_{name}": value for name, value in logs.items() if not name.startswith("val_")}
        validated = {f"epoch_{name[4:]}": value for name, value in logs.items() if name.startswith("val_")}
        self._write("train", trained, self._epochs)
        self._write("validation", validated, self._epochs)
        self._epochs += 1

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _workers(self, end: EpochEnd) -> None:
        for share in end.workers:
            values = {
                "epoch_samples": share.samples,
                "epoch_steps": share.steps,
                "epoch_samples_per_second": share.samples / share.seconds if share.seconds else 0.0,
                "epoch_bytes_sent": share.bytes_sent,
                "epoch_bytes_received": share.bytes_received,
            }
            self._write(f"worker-{share.rank}", values, self._epochs)
            self._steps[share.rank] = self._steps.get(share.rank, 0) + share.steps

    def _write(self, name: str, values: Mapping[str, Any], step: int) -> None:
        import tensorflow as tf

        if not values:
            return
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._directory / name))
        with tf.init_scope(), self._writers[name].as_default():
            for tag, value in values.items():
                tf.summary.write(tag, tf.constant(float(value)), step=step, metadata=_scalar())
        self._writers[name].flush()


def _scalar() -> Any:
    """Return the metadata of a curve. `tf.summary.scalar` adds them, too, but needs the tensorboard package."""
    from fdt.compat.tensorflow import summary_pb2

    metadata = summary_pb2.SummaryMetadata(data_class=summary_pb2.DATA_CLASS_SCALAR)
    metadata.plugin_data.plugin_name = "scalars"
    return metadata
