"""Result of one simulated run, its record and the logs that callbacks received; the table and report of several."""

import csv
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fdt.report import JobSummary, Reporter, duration, nbytes, quantity, rate
from frontends.report import REPORT
from frontends.report.curves import Curve
from frontends.report.page import render, write
from nfdt.model import Spread, spread
from nfdt.simulator import RECORD

DATA = "run.json"
SMOOTHED = 5  # number of points of a curve in a running mean


class Collector(Reporter):
    """Collects each epoch's final logs, `val_*` included, by fit."""

    def __init__(self) -> None:
        self.fits: list[list[dict[str, float]]] = []

    def job(self, job: JobSummary) -> None:
        self.fits.append([])

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.fits[-1].append(dict(logs))


@dataclass(frozen=True)
class SimulationOutcome:
    """Result of one simulated run. `fits` has the format of SimulationRecord; `logs` is by fit and epoch."""

    algorithm: str
    seed: int
    workers: int
    fits: list[dict[str, Any]]
    logs: list[list[dict[str, float]]]
    staleness: Counter[int] = field(init=False)

    def __post_init__(self) -> None:
        counts: Counter[int] = Counter()
        for fit in self.fits:
            counts.update({int(tau): count for tau, count in fit["staleness"].items()})
        object.__setattr__(self, "staleness", counts)

    @classmethod
    def of(cls, run_dir: Path, logs: list[list[dict[str, float]]], seed: int) -> "SimulationOutcome":
        """Return the result of the simulation that ran in `run_dir`."""
        record = json.loads((run_dir / RECORD).read_text())
        algorithms = list(dict.fromkeys(fit["algorithm"] for fit in record["fits"]))
        return cls(", ".join(algorithms), seed, record["workers"], record["fits"], logs)

    @classmethod
    def read(cls, directory: Path) -> "SimulationOutcome":
        """Return the result that `write` wrote."""
        return cls(**json.loads((directory / DATA).read_text()))

    def write(self, directory: Path) -> None:
        """Write the result to DATA in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        kept = {name: getattr(self, name) for name in ("algorithm", "seed", "workers", "fits", "logs")}
        (directory / DATA).write_text(json.dumps(kept))

    # -- numbers ---------------------------------------------------------------------------------------------

    def total(self, name: str) -> float:
        """Return the sum of a field of EpochRecord over all epochs."""
        return float(sum(epoch[name] for fit in self.fits for epoch in fit["epochs"]))

    @property
    def simulated_s(self) -> float:
        """Simulated seconds of all fits."""
        return float(sum(fit["epochs"][-1]["simulated_s"] for fit in self.fits if fit["epochs"]))

    @property
    def metric(self) -> str:
        """Metric that compares runs: the first one that is not a loss, of the validation if there is one."""
        names = list(self.logs[-1][-1]) if self.logs and self.logs[-1] else []
        for wanted in (_validated, lambda name: not _validated(name)):
            chosen = [name for name in names if wanted(name)]
            best = [name for name in chosen if not name.endswith("loss")]
            if chosen:
                return (best or chosen)[0]
        return ""

    @property
    def final(self) -> float:
        """Last value of `metric`."""
        return self.logs[-1][-1][self.metric] if self.metric else math.nan

    # -- curves ----------------------------------------------------------------------------------------------

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield all points of the run's curve; samples and simulated seconds accumulate over fits."""
        samples = simulated_s = 0.0
        for number, fit in enumerate(self.fits):
            for point in fit["points"]:
                moved = {"samples": samples + point["samples"], "simulated_s": simulated_s + point["simulated_s"]}
                yield {"fit": number, **point, **moved}
            if fit["epochs"]:
                samples += sum(epoch["samples"] for epoch in fit["epochs"])
                simulated_s += fit["epochs"][-1]["simulated_s"]

    def training_curve(self, x: str, name: str) -> tuple[list[float], list[float]]:
        """Return the smoothed metric `name` of training between points against `x` ("samples" or "simulated_s")."""
        by_place: dict[tuple[int, int, int], dict[str, Any]] = {}
        for point in self.points():  # a barrier's pushes follow each other without a training step between them
            if name in point["logs"]:
                by_place.setdefault((point["fit"], point["epoch"], point["epoch_samples"]), point)
        known = list(by_place.values())
        values = [_recent(known[i - 1] if i else None, point, name) for i, point in enumerate(known)]
        return [point[x] for point in known], _smooth(values)

    def validation_curve(self, x: str, name: str) -> tuple[list[float], list[float]]:
        """Return the validation's metric `name` at each epoch's end."""
        ends = self._epoch_ends(x)
        logs = [log for fit in self.logs for log in fit]
        known = [(at, log[f"val_{name}"]) for at, log in zip(ends, logs, strict=False) if f"val_{name}" in log]
        return [at for at, _ in known], [value for _, value in known]

    def curves(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return the curves of all metrics as the report draws them: by epochs, by simulated seconds."""
        epochs = sum(len(fit["epochs"]) for fit in self.fits)
        per_epoch = self.total("samples") / epochs if epochs else 1.0
        names = dict.fromkeys(name for point in self.points() for name in point["logs"])
        found: dict[str, dict[str, dict[str, list[float]]]] = {}
        for name in names:
            for kind, curve_of in (("train", self.training_curve), ("validation", self.validation_curve)):
                samples, ys = curve_of("samples", name)
                drawn, seconds = Curve(), curve_of("simulated_s", name)[0]
                for done, second, y in zip(samples, seconds, ys, strict=True):
                    if math.isfinite(y):
                        drawn.add(done / per_epoch, second, y)
                found.setdefault(name, {})[kind] = drawn.as_json()
        return found

    def _epoch_ends(self, x: str) -> list[float]:
        """Return samples or simulated seconds at the end of each epoch of each fit."""
        ends, begin = [], 0.0
        for fit in self.fits:
            samples = list(accumulate(epoch["samples"] for epoch in fit["epochs"]))
            seconds = [epoch["simulated_s"] for epoch in fit["epochs"]]
            ends += [begin + at for at in (samples if x == "samples" else seconds)]
            begin = ends[-1] if ends else 0.0
        return ends


def summary(outcome: SimulationOutcome) -> dict[str, str]:
    """Return the lines that follow a run, by name."""
    total, wall_s = outcome.total, outcome.total("total_s")
    overhead_s = wall_s - total("gradient_s") - total("update_s")
    per_second = rate(total("samples"), outcome.simulated_s)
    share = f"{overhead_s / wall_s:.0%}" if wall_s else ""
    return {
        "workers": f"{outcome.workers:,}, simulated",
        "algorithm": outcome.algorithm,
        "simulated": f"{duration(outcome.simulated_s)}, {per_second}",
        "trained": f"{quantity(int(total('steps')), 'step')}, {quantity(int(total('samples')), 'sample')}",
        "staleness": str(spread(outcome.staleness) or ""),
        "moved": f"{nbytes(total('bytes_sent'))} sent, {nbytes(total('bytes_received'))} received "
        "by workers, over the simulated links",
        "wall time": f"{duration(wall_s)}: gradients {duration(total('gradient_s'))}, updates "
        f"{duration(total('update_s'))}, simulator {duration(overhead_s)} ({share})",
    }


def write_report(outcomes: Sequence[SimulationOutcome], directory: Path) -> None:
    """Write report.html and points.csv, the curves' data, to `directory`. Each run's own data are in its run.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_points(list(outcomes), directory / "points.csv")
    write(render("nfdt simulate", [_as_run(outcome) for outcome in outcomes]), directory / REPORT)


def _as_run(outcome: SimulationOutcome) -> dict[str, Any]:
    """Return the run as the report's page takes it (frontends/report/run_data.py)."""
    taus = sorted(outcome.staleness)
    shares = [outcome.staleness[tau] / outcome.staleness.total() for tau in taus]
    mean = [float(spread_of.mean)] if (spread_of := spread(outcome.staleness)) else []
    ends = {"e": [float(sum(len(fit["epochs"]) for fit in outcome.fits))], "t": [outcome.simulated_s], "y": mean}
    return {
        "name": outcome.algorithm,
        "state": "finished",
        "time": "simulated time",
        "seconds": outcome.simulated_s,
        "jobs": [{"workers": outcome.workers}],
        "summary": {
            "steps": int(outcome.total("steps")),
            "samples_per_second": outcome.total("samples") / outcome.simulated_s if outcome.simulated_s else 0.0,
        },
        "curves": outcome.curves(),
        "measures": {"staleness": {"mean": ends}} if mean else {},
        "facts": {**summary(outcome), "seed": str(outcome.seed)},
        "histogram": {"x": taus, "y": shares} if taus else None,
    }


def write_points(outcomes: list[SimulationOutcome], file: Path) -> None:
    """Write the curves as a CSV table with one line per point."""
    names = sorted({name for o in outcomes for point in o.points() for name in point["logs"]})
    heads = ["fit", "epoch", "pushes", "samples", "epoch_samples", "simulated_s"]
    with open(file, "w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["algorithm", *heads, *names])
        for outcome in outcomes:
            for point in outcome.points():
                logs = [point["logs"].get(name, "") for name in names]
                table.writerow([outcome.algorithm, *(point[head] for head in heads), *logs])


def _validated(name: str) -> bool:
    return name.startswith("val_")


def _recent(before: dict[str, Any] | None, point: dict[str, Any], name: str) -> float:
    """Return a metric's mean since the point `before`, from Keras's running means; other metrics stay as they are."""
    value, count = point["logs"][name], point["epoch_samples"]
    same = before is not None and (before["fit"], before["epoch"]) == (point["fit"], point["epoch"])
    if not same or before is None or not ("acc" in name or name.endswith("loss")):
        return float(value)
    earlier = before["epoch_samples"]
    return float((value * count - before["logs"][name] * earlier) / max(1, count - earlier))


def _smooth(values: list[float]) -> list[float]:
    return [statistics.fmean(values[max(0, i - SMOOTHED + 1) : i + 1]) for i in range(len(values))]


WIDTH = 110  # columns, if the output is not a terminal
HEADS = ("algorithm", "metric", "final", "simulated_s", "pushes", "staleness_mean", "staleness_median", "staleness_max")


def row(outcome: SimulationOutcome) -> dict[str, str | float]:
    """Return one run's line by column name."""
    taus = spread(outcome.staleness) or Spread(0.0, 0.0, 0.0)
    found = (outcome.algorithm, outcome.metric, outcome.final, outcome.simulated_s, outcome.total("pushes"), *taus)
    return dict(zip(HEADS, found, strict=True))


def print_table(outcomes: Sequence[SimulationOutcome]) -> None:
    """Print the table of all runs."""
    table = Table()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    metric = outcomes[0].metric or "metric"
    for head in ("algorithm", metric, "simulated s", "pushes", "staleness", "median", "largest"):
        table.add_column(head, justify="left" if head == "algorithm" else "right")
    for outcome in outcomes:
        _, _, final, simulated_s, pushes, mean, median, largest = row(outcome).values()
        staleness = f"{mean:.2f}", f"{median:g}", f"{largest:g}"
        table.add_row(outcome.algorithm, f"{final:.4f}", f"{simulated_s:,.1f}", f"{pushes:,.0f}", *staleness)
    console.print(table)


def write_table(outcomes: Sequence[SimulationOutcome], directory: Path) -> None:
    """Write compare.json and compare.csv."""
    rows = [row(outcome) for outcome in outcomes]
    (directory / "compare.json").write_text(json.dumps(rows, indent=1))
    with open(directory / "compare.csv", "w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, HEADS)
        table.writeheader()
        table.writerows(rows)
