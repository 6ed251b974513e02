"""B9: processes of unequal speed on emulated hosts, trained by `nfdt run --emulate`. Needs root."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import harness

from benchmarks.papers import clusters
from benchmarks.papers.experiment import Experiment, Results, Run, Table, where

CLUSTER = """\
step: 1 s
link: {bandwidth: 1 Gbit/s}
nodes:
  - {name: fast, count: 2}
  - {name: slow, count: 1, speed: 0.3333333}
"""
ALGORITHMS = {"ssgd": "ssgd", "group_sync": "group_sync(warm_up=2)", "asgd": "asgd"}
BATCHES, EPOCHS = 28, 2
WORDS = [f"--rows={64 * BATCHES}", f"--epochs={EPOCHS}", "--rate=0.005"]


def runs(quick: bool) -> Iterator[Run]:
    for side in ("simulated",) if quick else ("simulated", "real"):
        for label, algorithm in ALGORITHMS.items():
            settings = {"side": side, "algorithm": algorithm, "label": label, "batches": BATCHES, "epochs": EPOCHS}
            yield Run(settings, lambda s=side, a=algorithm: simulated(a) if s == "simulated" else real(a))


def simulated(algorithm: str) -> Mapping[str, Any]:
    """Return the seconds of the last epoch on the simulated clock."""
    first, both = (clusters.timed(CLUSTER, algorithm, BATCHES, 0, 228_000, epochs) for epochs in (1, EPOCHS))
    return {"epoch_s": (both.now_s - first.now_s) / (EPOCHS - 1), "idle": both.idle()}


def real(algorithm: str) -> Mapping[str, Any]:
    """Return the same of real workers, whose steps are paced to their nodes' times."""
    if os.geteuid() != 0:
        raise harness.Failed("B9 emulates hosts: run it as root, or leave it out (make papers ARGS='B1 B2 ...')")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "cluster.yaml"
        file.write_text(CLUSTER)
        options = ["--emulate", str(file), "--algorithm", algorithm]
        script = str(harness.SCRIPTS / "keras_fit.py")
        found = harness.run([*harness.engine("nfdt", 3)[:4], *options, script, *WORDS], timeout_s=1500)
    ends = found.said["epoch_ends"]
    return {"epoch_s": (ends[-1] - ends[0]) / (EPOCHS - 1), "accuracy": found.said["accuracy"]}


def seconds(results: Results, side: str, label: str) -> float:
    found = where(results, side=side, label=label)
    return float(found[0].figures["epoch_s"]) if found else float("nan")


def draw(results: Results, figure: Any) -> None:
    axis = figure.subplots()
    for place, side in enumerate(("simulated", "real")):
        at = [number + 0.4 * place for number in range(len(ALGORITHMS))]
        axis.bar(at, [seconds(results, side, label) for label in ALGORITHMS], 0.38, label=side)
    axis.set_xticks([number + 0.2 for number in range(len(ALGORITHMS))], list(ALGORITHMS))
    axis.set(ylabel="seconds of an epoch")
    axis.legend()


def measured(results: Results) -> str:
    cells = ", ".join(
        f"{label} {seconds(results, 'real', label):.1f} s (simulated {seconds(results, 'simulated', label):.1f})"
        for label in ALGORITHMS
    )
    return f"An epoch of {BATCHES} batches, real workers: {cells}." + " nan: not run yet." * ("nan" in cells)


def tables(results: Results) -> Iterator[Table]:
    rows = [[label, *(f"{seconds(results, s, label):.1f}" for s in ("simulated", "real"))] for label in ALGORITHMS]
    yield Table("Seconds of an epoch", ["algorithm", "simulated", "real"], rows)


EXPERIMENTS = [
    Experiment(
        "B9",
        "real workers of unequal speed",
        "Grouped, nodes of unequal speed wait little. No figure.",
        "Three emulated hosts of one machine, two of speed 1 and one of 1/3, links of 1 Gbit/s; steps are paced to 1 s "
        "and 3 s. benchmarks/scripts/keras_fit.py, the second epoch; one turn. Where the machine is slower than the "
        "pace, so is the step. group_sync measures its workers in two rounds here, and the first step of each is "
        "traced.",
        runs,
        measured,
        draw,
        tables,
    )
]
