"""The job of a script's first `fit`, which is not sent, and the lines that the command `inspect` prints about it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fdt.report import JobSummary, milliseconds, nbytes, quantity

LINKS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1.25e9}  # bytes per second


@dataclass(frozen=True)
class CostReport:
    """The cost of a run, as lines of the report and as values for JSON."""

    lines: Sequence[str]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Inspection:
    """The first `fit` of a script, as it would be sent.

    Attributes:
        job: The numbers of the job.
        note: Why the data have to be drawn in the client; "" where workers read them.
        mapped: Which process maps which rows of a pipeline, and why; "" where no row is mapped.
        cost: The cost of a run; None if it was not asked for.
        step_s: Seconds of one step of a global batch on this machine; None if not measured.
        compressed: Bytes that stand for all gradients, and for all weights where they are pulled, by compressor.
    """

    job: JobSummary
    note: str
    step_s: float | None
    compressed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    mapped: str = ""
    cost: CostReport | None = None


def report(found: Inspection) -> list[str]:
    """Return one line for each fact."""
    job = found.job
    steps = job.steps_per_epoch
    samples = quantity(job.samples, "sample") if job.samples else "number of samples not known"
    facts = {
        "model": f"{job.model}, {job.parameters:,} trainable parameters, {nbytes(job.gradient_bytes)}",
        "loss": job.loss or "the model's own",
        "optimizer": job.optimizer,
        "data": f"{_DATA[job.data]}, {samples}, {nbytes(job.data_bytes)} in shared memory"
        + (f" ({found.note})" if found.note else ""),
        **({"input": found.mapped} if found.mapped else {}),
        "batch": quantity(job.batch_size, "sample") if job.batch_size else "not known",
        "steps": f"{steps:,} per epoch" if steps else "not known before the end of the data",
        "epochs": f"{job.epochs - job.initial_epoch}" + (", with validation" if job.validation else ""),
        "once": f"{nbytes(job.state_bytes + job.data_bytes)} at the start (model, optimizer, data), then "
        f"{nbytes(job.state_bytes)} per epoch",
        **traffic(job),
        **savings(found),
        **(outlook(found) if found.cost is None else {}),
    }
    lines = [f"{name + ':':<11} {value}" for name, value in facts.items()]
    return lines if found.cost is None else [*lines, *found.cost.lines]


_DATA = {
    "arrays": "arrays",
    "graph": "a tf.data pipeline that workers run",
    "feed": "read by the script and sent to workers",
}


def step_bytes(job: JobSummary) -> float:
    """Return the bytes that one worker sends for one step.

    A ring all-reduce sends 2(n-1)/n of the gradient; a parameter server's worker sends the gradient.
    """
    if job.engine == "hfdt":
        return 2 * (job.workers - 1) / job.workers * job.gradient_bytes
    return job.gradient_bytes


def traffic(job: JobSummary) -> dict[str, str]:
    """Return what one step sends, as a line of the report."""
    sent = nbytes(step_bytes(job))
    if job.engine == "hfdt":
        return {"per step": f"each worker, of {job.workers}, sends and receives {sent} (ring all-reduce)"}
    return {
        "per step": f"a worker pushes {sent} and pulls as much; the server does so with each worker, of {job.workers}"
    }


def savings(found: Inspection) -> dict[str, str]:
    """Return the bytes of a step under each compressor, as a line of the report."""
    kinds = [f"{name} {' and '.join(map(nbytes, sizes))}" for name, sizes in compressed_bytes(found).items()]
    return {"--compress": f"{', '.join(kinds)} per step"} if kinds and found.job.workers > 1 else {}


def compressed_bytes(found: Inspection) -> dict[str, list[float]]:
    """Return the bytes of a step under each compressor: of gradients, and of weights where they are pulled."""
    factor = step_bytes(found.job) / (found.job.gradient_bytes or 1)
    return {name: [factor * size for size in sizes] for name, sizes in found.compressed.items()}


def outlook(found: Inspection) -> dict[str, str]:
    """Return where the time will go if every worker has a machine like this one and a link of an assumed speed."""
    job = found.job
    if found.step_s is None:
        return {"time": "not measured: the script reads the data"}
    cores = quantity(len(os.sched_getaffinity(0)), "core")
    lines = {"compute": f"{milliseconds(found.step_s)} per step, measured on this machine: the whole batch on {cores}"}
    for link, speed in LINKS.items():
        lines[f"at {link}"] = _share(job, found.step_s, step_bytes(job) / speed)
    return {**lines, "assumed": "each worker has a machine like this one"}


def _share(job: JobSummary, step_s: float, link_s: float) -> str:
    """Return one line on computing and sending time, and on the expected speed-up.

    Synchronous workers each compute a part of the batch, then all send. Asynchronous workers compute whole batches and
    share the server's link.
    """
    if job.engine == "hfdt":
        compute_s = step_s / job.workers
        total_s = compute_s + link_s
        gain = step_s / total_s
    else:
        compute_s = step_s
        total_s = max(compute_s + link_s, job.workers * link_s)
        gain = job.workers * step_s / total_s
    sent, computed = milliseconds(link_s), milliseconds(compute_s)
    return f"{sent} to send, {computed} to compute: about {gain:.1f} times as fast as one worker"
