"""A2: one algorithm commanded by a control end, and run by its nodes themselves."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import harness

from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

SCRIPT = harness.SCRIPTS / "averaged.py"
DIRECT, EMULATED, SIMULATED = "nodes themselves", "control, emulated", "control, simulated"
CLUSTER = "step: {step_ms} ms\nnodes: [{{name: node, count: 4}}]\n"
STEPS = 50
LEAST_MS = 0.001  # of a step, in a file whose steps take no time
CALM = 8.0  # load average: four processes of ours, and little else


def runs(quick: bool) -> Iterator[Run]:
    kinds = (DIRECT, EMULATED, SIMULATED) if os.geteuid() == 0 else (DIRECT, SIMULATED)
    for repeat in range(1 if quick else 5):
        for step_ms in (20,) if quick else (0, 20, 100):
            for kind in kinds:
                settings = {"kind": kind, "step_ms": step_ms, "nodes": 4, "steps": 5 if quick else STEPS}
                given = settings | {"repeat": repeat}
                yield Run(given, lambda given=given: measure(given))


def measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return seconds of a step and a digest of the weights. Raises harness.Failed."""
    words = [str(SCRIPT), *(["--direct", str(settings["step_ms"] / 1e3)] if settings["kind"] == DIRECT else [])]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "cluster.yaml"
        file.write_text(CLUSTER.format(step_ms=max(LEAST_MS, settings["step_ms"])))
        if settings["kind"] != DIRECT:
            options = ["--cluster", str(file), *(["--emulate"] if settings["kind"] == EMULATED else [])]
            words = ["-m", "nfdt", "control", *options, *words]
        argv = [
            sys.executable,
            *words,
            *(["--"] if settings["kind"] != DIRECT else []),
            "--steps",
            str(settings["steps"]),
        ]
        env = {**os.environ, **harness.QUIET, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Failed(f"exit code {done.returncode}: {' '.join(argv)}\n{done.stderr[-2000:]}")
    said = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    load = round(os.getloadavg()[0], 1)
    return {"step_s": round(said["seconds"] / settings["steps"], 6), "weights": said["weights"], "load": load}


def fastest_ms(results: Results) -> float:
    """Return the time of a step in the least disturbed run."""
    return 1e3 * min(r.figures["step_s"] for r in results)


def calm(results: Results) -> Results:
    """Return the runs whose times count: those of the simulated clock, and those of a machine without other load."""
    return [r for r in results if r.settings["kind"] == SIMULATED or r.figures.get("load", CALM) < CALM]


def cells(given: Results) -> Iterator[tuple[int, float, float]]:
    """Yield the step's own time, and a step's time by the nodes and under emulated control, in ms."""
    results = calm(given)
    for step_ms in values(results, "step_ms"):
        direct, emulated = (where(results, step_ms=step_ms, kind=kind) for kind in (DIRECT, EMULATED))
        if direct and emulated:
            yield step_ms, fastest_ms(direct), fastest_ms(emulated)


def measured(results: Results) -> str:
    equal = len({r.figures["weights"] for r in results}) == 1
    said = f"Weights are {'equal to the last bit' if equal else 'NOT equal'} in {len(results)} runs."
    for step_ms, direct, emulated in cells(results):
        said += (
            f" With {step_ms} ms of computation a step takes {direct:.1f} ms by the nodes themselves and "
            f"{emulated:.1f} ms under control: ratio {emulated / direct:.2f}."
        )
    if busy := len(results) - len(calm(results)):
        said += f" The times of {busy} runs on a busy machine (load {CALM:g} or more) do not count."
    return said


def draw(given: Results, figure: Any) -> None:
    axis, results = figure.subplots(), calm(given)
    for place, kind in enumerate(values(results, "kind")):
        found = [(n, where(results, kind=kind, step_ms=ms)) for n, ms in enumerate(values(results, "step_ms"))]
        bars = [(n + 0.25 * (place - 1), fastest_ms(cell)) for n, cell in found if cell]
        shown = axis.bar([x for x, _ in bars], [y for _, y in bars], 0.23, label=kind)
        axis.bar_label(shown, fmt="%.1f", fontsize=8)
    steps = values(results, "step_ms")
    axis.set_xticks(range(len(steps)), [f"{ms} ms" for ms in steps])
    axis.set(xlabel="computation of a step", ylabel="a step, in ms (fastest run)")
    axis.legend()


def tables(results: Results) -> Iterator[Table]:
    rows = [[f"{ms} ms", f"{a:.1f}", f"{b:.1f}", f"{b - a:.1f}", f"{b / a:.2f}"] for ms, a, b in cells(results)]
    heads = ("computation of a step", "nodes themselves, ms", "under control, ms", "more, ms", "ratio")
    yield Table("A step of four nodes, in the fastest run", heads, rows)


EXPERIMENTS = [
    Experiment(
        "A2",
        "a control end against the nodes themselves",
        "Not measured: where the channel's delay and overhead are small, a control end comes close to running the "
        "algorithm on the nodes themselves.",
        "Ours: synchronous SGD on softmax regression, 4 nodes, 63 kB a gradient, links without limits. The nodes "
        "themselves are processes that send by TCP; under control they are emulated hosts that take commands by a Unix "
        "socket. All share two hyperthreads. Simulated: the time of the simulated clock.",
        runs,
        measured,
        draw,
        tables,
    )
]
