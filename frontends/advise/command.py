"""Command `nfdt advise`: the algorithm that is expected to be fastest for a script on a described cluster."""

import importlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdt.cli import script_argv
from fdt.cli.options import FILE, REPORTS, seed_option
from fdt.cli.program import ScriptCommand, option
from fdt.environment import quiet_import
from fdt.errors import EXIT_USAGE, UserError
from frontends.advise import NoAnswer
from frontends.inspect_command import end_stdout, stdout_diverted

if TYPE_CHECKING:
    from client_shim.inspection import CostReport
    from fdt.network import Cluster
    from frontends.advise.ranking import Ranking, ScriptProbe

_Typed = tuple[Sequence[str], Sequence[str]]  # the script, or -m and a module; its arguments
SHOWN = 5
NODES = "Nodes and links (docs/cluster.md). A node of speed 1 is this machine; `step` is not used."
ELSE = "use nfdt simulate --compare, or a short run of each algorithm"
EXAMPLES = """\b
Examples:
  nfdt advise --cluster cluster.yaml train.py              nodes and links as described (docs/cluster.md)
  nfdt advise --json --cluster cluster.yaml train.py       the same as one JSON object
"""


@click.command("advise", cls=ScriptCommand, epilog=EXAMPLES)
@option("Cluster", "--cluster", required=True, type=FILE, metavar="FILE", help=NODES)
@seed_option
@option(REPORTS, "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else, to stdout.")
def advise_command(script: str, script_args: list[str], *, cluster: Path, seed: int | None, as_json: bool) -> int:
    """Print which algorithm of HFDT or NFDT is expected to train script.py fastest on a cluster.

    script.py runs up to its first `fit` and is not trained. A step is measured on this machine. How many steps each
    algorithm needs is from the tournament's results, and how long they take from a simulation of the cluster.
    """
    described = _cluster(cluster)
    workers, typed = len(described.workers), (script_argv(script), script_args)
    if not as_json:
        probe, found = _answer(script, script_args, seed, described)
        click.echo("\n".join(lines(found, probe, typed, workers)))
        return 0
    head = {"command": "nfdt advise", "script": script, "cluster": str(cluster), "workers": workers}
    with stdout_diverted():
        try:
            probe, found = _answer(script, script_args, seed, described)
            values, code = as_values(found, probe, typed, workers), 0
        except UserError as error:
            if error.exit_code == EXIT_USAGE:
                raise
            values, code = {"advice": None, "reason": str(error)}, error.exit_code
    click.echo(json.dumps({**head, **values}))
    end_stdout()
    return code


def _answer(
    script: str, script_args: Sequence[str], seed: int | None, cluster: "Cluster"
) -> "tuple[ScriptProbe, Ranking]":
    """Return what was measured, and the order of the algorithms. Raises NoAnswer."""
    from frontends.advise.ranking import check_inside, rank
    from frontends.advise.table import Place, Table

    table = Table.read()
    check_inside(table, Place.of(cluster))  # before the script runs
    probe, refused = _probe(script, script_args, seed, len(cluster.workers))
    return probe, rank(table, cluster, probe, refused)


def _cluster(file: Path) -> "Cluster":
    """Return the cluster that a file describes. Raises UsageError for fewer than two workers."""
    from fdt.errors import UsageError
    from fdt.network.reading import read_emulated

    found = read_emulated(file)
    if len(found.workers) < 2:
        raise UsageError(f"{file} must describe two workers or more. Received: {len(found.workers)}")
    return found


# -- the script ----------------------------------------------------------------------------------------------------
def _probe(
    script: str, script_args: Sequence[str], seed: int | None, workers: int
) -> "tuple[ScriptProbe, dict[str, str]]":
    """Run `script` up to its first `fit`; return what was measured, and the algorithms that cannot train it.

    Raises:
        NoAnswer: Nothing can be measured.
    """
    with quiet_import():
        from client_shim.inspect import inspect
        from client_shim.state import Settings
        from frontends.advise.ranking import ScriptProbe

    seen: list[Any] = []
    settings = Settings(seed=seed)
    code = inspect(script, script_args, "nfdt", workers, settings, cost=_measured, show=lambda *each: seen.append(each))
    if not seen:
        raise NoAnswer(f"{script} ended with exit code {code} before its first fit")
    detected, found = seen[0]
    if found is None:
        why = "has a training loop of its own" if detected.capture == "replica" else "does not call fit"
        raise NoAnswer(f"{script} {why}, so no step can be measured; {ELSE}")
    values = found.cost.values
    if "reason" in values:
        raise NoAnswer(f"{values['reason']}; {ELSE}")
    return ScriptProbe(**values["probe"]), values["refused"]


def _measured(fit: Any, summary: Any, _compressed: Any) -> "CostReport":
    """Return the ScriptProbe of a captured `fit` and the refused algorithms, or the reason why there is none."""
    from client_shim.inspect import first_batch
    from client_shim.inspection import CostReport
    from fdt.job import FeedData
    from fdt.service.blame import one_line

    if isinstance(fit.job.data, FeedData):
        return CostReport([], {"reason": "the script's process reads the data, so no step can be measured here"})
    model, trainable = fit.call.model, fit.trainable
    if model.run_eagerly:
        return CostReport([], {"reason": "the model runs eagerly (run_eagerly), so its step cannot be traced"})
    step: Any = importlib.import_module("hfdt.cost.step")
    fit.run.reporters.note("measuring a step of the script")
    try:
        batch = first_batch(fit)
        whole = step.traced_step(model, trainable, batch, 1)
    except Exception as error:  # of the script's own step
        return CostReport([], {"reason": f"a step of the script failed: {one_line(error)}"})
    fixed, refused = 1.0, dict(_refused(model.optimizer, trainable))
    try:
        if whole.rows > 1:
            part = step.traced_step(model, trainable, batch, min(summary.workers, whole.rows))
            fixed = fixed_part(whole.rows, whole.seconds, part.rows, part.seconds)
    except Exception as error:  # the model fixes the rows of a batch
        why = f"a step of 1/{summary.workers} of a batch failed: {one_line(error)}"
        refused = {**dict.fromkeys(_dividing(), why), **refused}
    of = step.model_bytes(trainable)
    sizes = {"nbytes": of.gradients, "slot_nbytes": of.slots, "batches": summary.steps_per_epoch}
    return CostReport([], {"probe": {"step_s": whole.seconds, **sizes, "fixed": fixed}, "refused": refused})


def fixed_part(rows: int, seconds: float, few: int, few_s: float) -> float:
    """Return the part of a step's time that does not shrink with its rows, in 0..1."""
    share = few / rows
    return 1.0 if share >= 1 else min(1.0, max(0.0, (few_s / seconds - share) / (1 - share)))


def _dividing() -> list[str]:
    """Return HFDT's algorithms whose ranks compute parts of a batch."""
    from frontends.advise.ranking import EXACT, PER_WORKER
    from frontends.advise.table import Table

    pairs = [*EXACT, *Table.read().algorithms]
    return [f"{engine} {name}" for engine, name in pairs if engine == "hfdt" and not name.endswith(PER_WORKER)]


def _refused(optimizer: Any, trainable: Any) -> Iterator[tuple[str, str]]:
    """Yield the algorithms of the table that do not work with an optimizer, and why."""
    from frontends.advise.ranking import PER_WORKER
    from frontends.advise.table import Table

    settings: Any = importlib.import_module("nfdt.model.settings")
    options: Any = importlib.import_module("nfdt.options")
    guard: Any = importlib.import_module("hfdt.worker.nonfinite_guard")
    registry: Any = importlib.import_module("hfdt.algorithms")
    for engine, algorithm in Table.read().algorithms:
        try:
            if engine == "nfdt":
                settings.algorithm_of(options.Options.read({"rule": algorithm}), optimizer, trainable.trainable)
            else:
                guard.check_optimizers(registry.make(algorithm.removesuffix(PER_WORKER)), trainable)
        except UserError as error:
            yield f"{engine} {algorithm}", str(error)


# -- the answer ----------------------------------------------------------------------------------------------------
def lines(found: "Ranking", probe: "ScriptProbe", script: _Typed, workers: int) -> list[str]:
    """Return the answer for a terminal."""
    from fdt.report import milliseconds, nbytes

    fixed, times = f"{probe.fixed:.0%} of it whatever its rows", found.expected_time
    between = f"{times['least']:.2f} to {times['most']:.2f}"
    drawn = [text.rstrip() for text in _table(found)]
    return [
        f"measured:  a batch takes {milliseconds(probe.step_s)} here, {fixed}; gradients have {nbytes(probe.nbytes)}",
        f"advice:    {_advice(found, script, workers)}",
        f"expected:  {times['expected']:.2f} of one machine's time to the same accuracy ({between})",
        f"sure:      {'; '.join([found.sure, *found.reasons])}",
        *(f"{'' if i else 'order:':<10} {text}" for i, text in enumerate(drawn)),
        "           time, least, most: over one machine's; batches: to the same accuracy, over one machine's",
        f"left out:  {len(found.left_out)} algorithms" + (" (--json names them)" if found.left_out else ""),
    ]


def _advice(found: "Ranking", script: _Typed, workers: int) -> str:
    """Return the command: the script alone where no algorithm is expected to be faster."""
    first = found.candidates[0]
    return first.command(*script, workers) if found.faster else shlex.join(["python", *script[0], *script[1]])


def _table(found: "Ranking") -> Iterator[str]:
    """Yield the lines of the table of the first candidates."""
    from fdt.report import milliseconds

    rows = [["", "time", "least", "most", "a batch", "batches"]]
    for c in found.candidates[:SHOWN]:
        times = [f"{time:.2f}" for time in (c.time, c.least, c.most)]
        rows.append([f"{c.engine} {c.algorithm}", *times, milliseconds(c.batch_s), f"{c.batches:.2f}"])
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        yield "  ".join([name.ljust(first), *(cell.rjust(n) for cell, n in zip(cells, others, strict=True))])


def as_values(found: "Ranking", probe: "ScriptProbe", script: _Typed, workers: int) -> dict[str, Any]:
    """Return the answer for JSON."""
    return {
        "advice": _advice(found, script, workers),
        "expected_time": found.expected_time,
        "sure": found.sure,
        "doubts": found.reasons,
        "candidates": [{**asdict(c), "command": c.command(*script, workers)} for c in found.candidates],
        "left_out": found.left_out,
        "probe": asdict(probe),
    }
