"""Short runs of a captured job on real ranks: the time of a step, the wait in exchanges, the memory of a rank."""

import contextlib
import queue
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import CaptureError
from fdt.job import BatchHooks, JobSpec
from fdt.rpc.session_pb2 import Command, Epoch, EpochEnd, Finish, Setup
from hfdt.cost.estimate import Measured
from hfdt.engine.engine import HfdtEngine

EPOCH_S = 1.0  # what an epoch of a short run should last: shorter ones are mostly Keras's own beginnings and ends
LEAST_STEPS, EPOCHS = 5, 5  # of an epoch; measured epochs, of which the calmest counts
MOST_S = 20.0  # of a short run's epochs, where a busy machine makes them long


def measure(job: JobSpec, blobs: LocalBlobs, workers: int, steps: int, step_s: float) -> Measured:
    """Train `job` for some seconds on `workers` new ranks, which end afterwards. The script's model does not change.

    Args:
        job: The captured job.
        blobs: The store of the job's blobs.
        workers: The number of ranks.
        steps: Steps of an epoch of the job; 0: unknown.
        step_s: About how long a step takes.

    Raises:
        UserError: The job cannot be trained so, or the ranks cannot be started.
    """
    count = max(LEAST_STEPS, round(EPOCH_S / step_s))
    short = replace(
        job,
        validation=None,
        fit=replace(
            job.fit,
            epochs=job.fit.initial_epoch + 1 + EPOCHS,
            steps_per_epoch=min(count, steps or count),
            batch_hooks=BatchHooks.NONE,
        ),
    )
    with tempfile.TemporaryDirectory(prefix="hfdt-") as logs:
        engine = HfdtEngine(workers, Path(logs), blobs=blobs)
        try:
            engine.start()
            ends, memory = _trained(engine, short)
        finally:
            engine.stop()
    return calmest(workers, ends, memory)


def calmest(workers: int, ends: list[EpochEnd], memory: int) -> Measured:
    """Return the figures of the fastest epoch but the first, in which the step is traced."""
    by_time = sorted((e for e in ends[1:] or ends if e.steps), key=lambda e: e.seconds / e.steps)
    if not by_time:
        raise CaptureError("a short run had no step")
    middle = by_time[len(by_time) // 2]  # the slowest may have traced a last, smaller batch
    end, step_s, usual_s = by_time[0], *(e.seconds / e.steps for e in (by_time[0], middle))
    waited = min((share.seconds - share.busy_seconds for share in end.workers), default=0.0)
    return Measured(workers, step_s, waited / end.steps, memory, usual_s / step_s)


def _trained(engine: HfdtEngine, job: JobSpec) -> tuple[list[EpochEnd], int]:
    """Return the ends of the job's epochs and the memory of its largest rank. Raises CaptureError where it fails."""
    commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    first, ends, memory = job.fit.initial_epoch, list[EpochEnd](), 0
    began = time.monotonic()
    commands.put(Command(job=job.id, setup=Setup(job=job.to_proto())))
    with contextlib.ExitStack() as stack:
        stack.callback(commands.put, None)
        for event in engine.train(iter(commands.get, None)):
            kind = event.WhichOneof("kind")
            if kind == "failed":
                raise CaptureError(event.failed.message or event.failed.detail.strip().rpartition("\n")[2])
            if kind == "epoch_end":
                ends.append(event.epoch_end)
                for ref in (event.epoch_end.state.model, event.epoch_end.state.optimizer, event.epoch_end.metrics):
                    engine.blobs.drop(ref)
                memory = max(map(resident_bytes, engine.pids()), default=0)
            if kind in ("ready", "epoch_end"):
                began = time.monotonic() if kind == "ready" else began
                done = len(ends) > EPOCHS or (len(ends) > 1 and time.monotonic() - began > MOST_S)
                what = {"finish": Finish()} if done else {"epoch": Epoch(epoch=first + len(ends))}
                commands.put(Command(job=job.id, **what))
    return ends, memory


def resident_bytes(pid: int) -> int:
    """Return the most resident bytes that a process has had, without shared memory, which is in memory only once."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return (_kilobytes(fields["VmHWM"]) - _kilobytes(fields["RssShmem"])) << 10


def _kilobytes(field: str) -> int:
    return int(field.split()[0])
