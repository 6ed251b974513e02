"""The cost report of `hfdt inspect`: measurements, a table, and the options that change the cost most."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from client_shim.inspection import LINKS, CostReport
from client_shim.job import CapturedFit
from fdt.blobs import LocalBlobs
from fdt.environment import cores
from fdt.job import BatchHooks, FeedData
from fdt.report import JobSummary, milliseconds, nbytes, quantity
from fdt.service.blame import one_line
from hfdt.cost.estimate import SIZES, Cost, Estimate, StepCurve

WORTH_SHARDING = 0.02  # slots' part of a rank's memory, from which the option is measured
MOST_SPREAD = 1.3  # between epochs of one short run on a machine that does nothing else
OF_MEMORY, OF_TIME = 0.01, 0.01  # of a rank's memory, of a step: what changes less is not worth a word


def reported(fit: CapturedFit, summary: JobSummary, compressed: Mapping[str, Any]) -> CostReport:
    """Measure the cost of a captured `fit`; return its report, or the reason why it cannot be estimated.

    Args:
        fit: The call of `fit`. The variables of its model have their values again at the end.
        summary: The numbers of its job.
        compressed: Bytes that stand for the gradients, by compressor.
    """
    if isinstance(fit.job.data, FeedData):
        return _not_estimated("the script's process reads the data, so no step can be measured here")
    if fit.call.model.run_eagerly:
        return _not_estimated("the model runs eagerly (run_eagerly), so its step cannot be traced")
    try:
        cost = _measured(fit, summary, compressed)
    except Exception as error:  # of the script's own step, or of ranks
        return _not_estimated(f"a short run failed: {one_line(error)}")
    notes = doubts(cost, hooks=fit.job.fit.batch_hooks is not BatchHooks.NONE)
    lines = [*table(cost, summary.workers), *parts(cost, summary), *advice(cost, summary.workers), *notes]
    return CostReport(lines, values(cost, summary.workers))


def _not_estimated(reason: str) -> CostReport:
    return CostReport([_line("cost", f"not estimated: {reason}")], {"not_estimated": reason})


def values(cost: Cost, asked: int) -> dict[str, Any]:
    """Return the estimates for the numbers of ranks of `table`, and what was measured, for JSON. Bytes and seconds."""
    return {
        "model_bytes": asdict(cost.of),
        "estimates": [asdict(cost.at(n)) for n in sorted({*SIZES, asked})],
        "measured": [asdict(run) for run in cost.measured.values()],
    }


def _measured(fit: CapturedFit, summary: JobSummary, compressed: Mapping[str, Any]) -> Cost:
    """Trace and time the step here, then run the job for some seconds on ranks."""
    from client_shim.inspect import first_batch
    from hfdt.cost import ranks, step

    trainable, job, blobs = fit.trainable, fit.job, fit.run.blobs
    assert isinstance(blobs, LocalBlobs)
    batch = first_batch(fit)
    sizes = [n for n in sorted({*SIZES, summary.workers}) if n <= cores()]
    listed = ", ".join(map(str, sizes))
    fit.run.reporters.note(f"measuring the cost: short runs of -np {listed} (--no-cost leaves them out)")
    traced = step.traced_steps(fit.call.model, trainable, batch, SIZES[-1])
    run = functools.partial(ranks.measure, blobs=blobs, steps=summary.steps_per_epoch, step_s=traced[0].seconds)
    runs, of = {n: run(job, workers=n) for n in sizes}, step.model_bytes(trainable)
    most, sharded = max(sizes), None
    if most > 1 and of.slots > WORTH_SHARDING * runs[most].memory and step.is_shardable(trainable):
        options = {**job.options, "shard_optimizer": "1"}  # its copies at the start and at checkpoints count, too
        sharded = run(replace(job, options=options), workers=most)
    return Cost(of, runs, StepCurve(traced), compressed, sharded)


def table(cost: Cost, asked: int) -> list[str]:
    """Return the table of numbers of ranks, `asked` among them, and what it assumes."""
    most = max(cost.measured)
    titles = ["-np", "memory/rank", "activations", "step, one host", *(f"step, {link}" for link in LINKS)]
    rows = [titles, *(_row(cost.at(n)) for n in sorted({*SIZES, asked}))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    drawn = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    cut = f"on this machine, whose {quantity(cores(), 'core')} they divided"
    return [
        *(_line("" if i else "cost", text.rstrip()) for i, text in enumerate(drawn)),
        _line(
            "measured", f"* in short runs of -np {', '.join(map(str, cost.measured))} {cut}; the others are estimates"
        ),
        _line(
            "assumed", f"one host: its cores are as many a rank as at -np {most}, and it exchanges as this machine does"
        ),
        _line("", "a link: each rank has a machine like this one; nothing is sent while it computes"),
        _line(
            "",
            "left out: validation, callbacks after every step, the script's own process, the computing of --compress",
        ),
    ]


def _row(found: Estimate) -> list[str]:
    return [
        str(found.workers),
        _known(found.memory, nbytes),
        _known(found.activations, nbytes),
        _known(found.step_s, milliseconds) + (" *" if found.measured else "  "),
        *map(milliseconds, found.linked_s.values()),
    ]


def doubts(cost: Cost, *, hooks: bool) -> list[str]:
    """Return why times may be wrong. `hooks`: callbacks read single steps."""
    spread = max(run.spread for run in cost.measured.values())
    busy = f"half the epochs of a short run were slower by a factor of {spread:.1f}: this machine does other work"
    slower = "callbacks that read every step make the real run slower than this"
    return [_line("note", text) for text, holds in ((busy, spread > MOST_SPREAD), (slower, hooks)) if holds]


def parts(cost: Cost, summary: JobSummary) -> list[str]:
    """Return of what the memory of a rank consists."""
    of, activations = cost.of, cost.curve.activations(max(cost.measured))
    named = {"weights": of.weights, "slots": of.slots, "gradients": of.gradients, "activations": activations or 0}
    run = cost.measured[max(cost.measured)]
    rest = run.memory - sum(named.values())
    sizes = ", ".join(f"{name} {nbytes(size)}" for name, size in named.items() if size)
    unknown = f"; activations are not known: {cost.curve.unknown}" if cost.curve.unknown else ""
    return [
        _line(
            "memory", f"at -np {run.workers}: {sizes}, TensorFlow, Keras and buffers {nbytes(max(0.0, rest))}{unknown}"
        ),
        _line("", f"and once on each machine, in shared memory: {nbytes(summary.data_bytes + summary.state_bytes)}"),
    ]


def advice(cost: Cost, asked: int) -> list[str]:
    """Return by how much options change memory and time at -np `asked`, the most first."""
    workers = asked if asked > 1 else 2
    found = cost.at(workers)
    rows = [("memory", _worthwhile(cost.memory_changes(workers), found.memory, OF_MEMORY, nbytes))]
    if found.step_s is not None:
        rows.append(
            ("a step on this machine", _worthwhile(cost.time_changes(workers), found.step_s, OF_TIME, milliseconds))
        )
    for link, speed in LINKS.items():
        changes = cost.time_changes(workers, speed)
        rows.append((f"a step at {link}", _worthwhile(changes, found.linked_s[link], OF_TIME, milliseconds)))
    return [
        _line("options" if i == 0 else "", (f"at -np {workers}, " if i == 0 else "") + f"{what}: {text}")
        for i, (what, text) in enumerate(rows)
    ]


def _worthwhile(changes: Mapping[str, float], of: float | None, least: float, form: Callable[[float], str]) -> str:
    """Return the changes above `least` times `of`, as one text, the largest first."""
    worth = [(name, by) for name, by in changes.items() if of and -by > least * of]
    changes_shown = [
        f"{name} -{form(-by)} ({by / (of or 1):.0%})" for name, by in sorted(worth, key=lambda each: each[1])
    ]
    return ", ".join(changes_shown) or "no option changes it by more than 1%"


def _known(value: float | None, form: Callable[[float], str]) -> str:
    return "unknown" if value is None else form(value)


def _line(name: str, text: str) -> str:
    return f"{name + ':' if name else '':<11} {text}"
