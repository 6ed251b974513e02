"""C1, C2, C3, C6: delay-compensated algorithms at tuned rates: accuracy by epoch, by workers, on unequal nodes."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from harness import ROOT

from benchmarks.papers import clusters
from benchmarks.papers.experiment import Experiment, Measured, Results, Run, Table, values, where

RATE = 0.02
WORKERS = 8
EPOCHS = {"fashion_mnist": 3, "cifar10": 4}
EQUAL = "step: 1 s\nnodes:\n  - {{name: worker, count: {n}, speed: {{distribution: gamma, mean: 1, shape: 100}}}}\n"
UNEQUAL = """\
step: 100 ms
link: {bandwidth: 1 Gbit/s, latency: 0.2 ms}
nodes:
  - {name: fast, count: 6, speed: {distribution: gamma, mean: 1, shape: 100}}
  - {name: slow, count: 3, speed: {distribution: gamma, mean: 0.3333333, shape: 100}}
  - name: far
    count: 3
    speed: {distribution: gamma, mean: 1, shape: 100}
    link: {bandwidth: 20 Mbit/s, latency: 15 ms}
"""
WORKERS_OF = {"fashion_mnist": (1, 8, 32, 2, 16, 4), "cifar10": (32, 8, 1, 16, 2, 4)}
LITERAL = "dc_asgd_k(weights='delay')"
WITH, WITHOUT = (RATE, 0.3 * RATE, 0.1 * RATE), (5 * RATE, 1.5 * RATE, 0.5 * RATE)  # rates, with momentum 0.9 and 0
GRID = (  # label, algorithm, momentum, rates
    ("DDC-ASGD (ours)", "ddc_asgd", 0.9, (RATE,)),
    ("DC-ASGDK", "dc_asgd_k", 0.9, WITH),
    ("ASGD", "asgd", 0.9, WITH),
    ("DDC-ASGD, literal", LITERAL, 0.9, WITH),
    ("DC-ASGD, no momentum", "dc_asgd", 0.0, WITHOUT),
    ("ASGD, no momentum", "asgd", 0.0, WITHOUT),
)
# Rates beyond those of GRID, where the best on held-out rows of the first seed was the lowest or the highest of them.
LOW, LOWEST = (0.03 * RATE, 0.01 * RATE), (0.15 * RATE, 0.05 * RATE)
HIGH, HIGHEST = (3 * RATE,), (15 * RATE, 50 * RATE)
MOMENTUM = {"DC-ASGDK": LOW, "ASGD": LOW, "DDC-ASGD, literal": HIGH}
NONE = {"DC-ASGD, no momentum": LOWEST, "ASGD, no momentum": LOWEST}
BEYOND: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "fashion_mnist": MOMENTUM,
    "cifar10": MOMENTUM | NONE,
    "unequal": MOMENTUM | {"SSGD": (12 * RATE, 36 * RATE), "group_sync": (12 * RATE,)},
}
SYNCHRONOUS = (("SSGD", "ssgd", 0.9, (4 * RATE, RATE)), ("group_sync", "group_sync", 0.9, (4 * RATE, RATE)))


def run(data: str, cluster: str, text: str, label: str, algorithm: str, momentum: float, rate: float, seed: int,
        quick: bool) -> Run:  # fmt: skip
    rows, epochs = (2_000, 1) if quick else (None, EPOCHS[data])
    recipe = clusters.Recipe(data, rate, momentum, decays=True, rows=rows, held_out=True)
    settings = {"data": data, "cluster": cluster, "label": label, "algorithm": algorithm, "momentum": momentum}
    settings |= {"rate": rate, "seed": seed, "epochs": epochs, "rows": rows}
    return Run(settings, lambda: clusters.train(recipe, text, algorithm, seed, epochs))


def best(results: Results, label: str) -> list[Measured]:
    """Return an algorithm's runs at the rate that is best on held-out rows, over seeds."""
    found = where(results, label=label)
    by_rate = {rate: where(found, rate=rate) for rate in values(found, "rate")}
    return max(by_rate.values(), key=lambda runs: statistics.fmean(r.figures["accuracy"] for r in runs), default=[])


def tested(runs: Results) -> list[float]:
    """Return the accuracy on test rows at the end, of each seed."""
    return [r.figures["test_curve"][-1][2] for r in runs]


def shown(points: list[float]) -> str:
    if len(points) < 2:
        return f"{points[0]:.1f}" if points else "-"
    return f"{statistics.fmean(points):.1f} ({min(points):.1f} to {max(points):.1f})"


def alone(data: str, seed: int, quick: bool) -> Run:
    return run(data, "1 node", EQUAL.format(n=1), "one node", "asgd", 0.9, RATE, seed, quick)


# -- C1, C2: accuracy by epoch ---------------------------------------------------------------------------------------
def curve_runs(data: str, quick: bool) -> Iterator[Run]:
    text, name = EQUAL.format(n=WORKERS), f"{WORKERS} equal nodes"
    for seed in range(1 if quick else 3):
        yield alone(data, seed, quick)
        for label, algorithm, momentum, rates in GRID:
            for rate in rates[:1] if quick else (*rates, *BEYOND[data].get(label, ())):
                yield run(data, name, text, label, algorithm, momentum, rate, seed, quick)


def draw_by(results: Results, axis: Any, column: int, xlabel: str) -> None:
    for label in values(results, "label"):
        found = [r.figures["test_curve"] for r in best(results, label)]
        length = min(len(curve) for curve in found)
        mean = np.mean([curve[:length] for curve in found], axis=0)
        axis.plot(mean[:, column], mean[:, 2], ".-", label=label)
    axis.set(xlabel=xlabel, ylabel="test accuracy in points")


def draw_curves(results: Results, figure: Any) -> None:
    axis = figure.subplots()
    draw_by(results, axis, 0, "epochs")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", fontsize=8)


def order(results: Results) -> str:
    labels = sorted(values(results, "label"), key=lambda label: -statistics.fmean(tested(best(results, label))))
    found = (f"{label} {shown(tested(best(results, label)))}" for label in labels)
    return f"Test points, each at its best rate on held-out rows: {', '.join(found)}.{at_edge(results)}"


def at_edge(results: Results) -> str:
    """Return which algorithms are best at the lowest or the highest of several rates, in words, if any."""
    found = []
    for label in values(results, "label"):
        rates, chosen = values(where(results, label=label), "rate"), best(results, label)[0].settings["rate"]
        if len(rates) > 1 and chosen in (min(rates), max(rates)):
            found.append(f"{label} at {chosen:g}")
    return f" Best at the edge of the rates that were run: {', '.join(found)}." if found else ""


def tuned_table(results: Results) -> Iterator[Table]:
    rows = []
    for label in values(results, "label"):
        found, chosen = where(results, label=label), best(results, label)
        tried_rates = sorted(values(found, "rate"), reverse=True)
        rates = {rate: [r.figures["accuracy"] for r in where(found, rate=rate)] for rate in tried_rates}
        tuning = ", ".join(f"{rate:g}: {statistics.fmean(points):.1f}" for rate, points in rates.items())
        tau = statistics.fmean(r.figures["tau"] for r in chosen)
        seconds = statistics.fmean(r.figures["simulated_s"] for r in chosen)
        rows.append([label, shown(tested(chosen)), tuning, f"{tau:.1f}", f"{seconds:.0f}"])
    heads = ["algorithm", "test points", "held-out points by rate", "staleness", "simulated seconds"]
    yield Table(f"{len(values(results, 'seed'))} seeds, {values(results, 'epochs')[0]} epochs", heads, rows)


def kept_table(data: str, workers: tuple[int, ...]) -> Table:
    """Return the accuracy of the kept runs of benchmarks/rules.py: a convolutional net, the task's rate."""
    lines = [json.loads(line) for line in (ROOT / "benchmarks/results/rules.jsonl").read_text().splitlines()]
    rows = []
    for rule in ("ddc_asgd", "dc_asgd_k", "asgd", "ssgd"):
        cells = []
        for n in workers:
            cells.append(shown([
                e["result"]["accuracy"] for e in lines
                if (e["run"]["data"], e["run"]["rule"], e["run"]["workers"]) == (data, rule, n)
                and not e["run"]["held_out"] and e["run"].get("rate", 1) == 1
            ]))  # fmt: skip
        rows.append([rule, *cells])
    return Table("The convolutional nets of rules.py at the script's rate, momentum 0.9: test points",
                 ["algorithm", *(f"{n} workers" for n in workers)], rows)  # fmt: skip


def c1_tables(results: Results) -> Iterator[Table]:
    yield from tuned_table(results)
    yield kept_table("fashion_mnist", (4, 8, 16, 32))


def c2_tables(results: Results) -> Iterator[Table]:
    yield from tuned_table(results)
    yield kept_table("cifar10", (8, 16))


# -- C3: unequal speeds and links ------------------------------------------------------------------------------------
def unequal_runs(quick: bool) -> Iterator[Run]:
    for seed in range(1 if quick else 3):
        for label, algorithm, momentum, rates in (*GRID, *SYNCHRONOUS):
            for rate in rates[:1] if quick else (*rates, *BEYOND["unequal"].get(label, ())):
                yield run("fashion_mnist", "unequal", UNEQUAL, label, algorithm, momentum, rate, seed, quick)


def draw_unequal(results: Results, figure: Any) -> None:
    by_time, by_samples = figure.subplots(1, 2, sharey=True)
    draw_by(results, by_time, 1, "simulated seconds")
    draw_by(results, by_samples, 0, "epochs (equal samples)")
    figure.legend(*by_time.get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)


# -- C6: accuracy over the number of workers -------------------------------------------------------------------------
def workers_runs(quick: bool) -> Iterator[Run]:
    for data, workers in WORKERS_OF.items():
        for n in (1, 4) if quick else workers:
            for label, algorithm, momentum, rates in (*GRID[:3], *GRID[4:]):
                for rate in rates[:1] if quick else rates_at(data, n, rates):
                    yield run(data, f"{n} equal nodes", EQUAL.format(n=n), label, algorithm, momentum, rate, 0, quick)
        if quick:
            return


def rates_at(data: str, n: int, rates: tuple[float, ...]) -> tuple[float, ...]:
    """Return the rates for n workers: lower or higher ones, too, where the best would be at the edge."""
    cifar = data == "cifar10"
    if rates == WITH:
        more = (9 * RATE,) if n == 1 else (0.003 * RATE,) if cifar and n == 32 else ()
        return (*rates, *(LOW if n >= (4 if cifar else 8) else HIGH if n <= 2 else ()), *more)
    lowered, raised = n >= (8 if cifar else 16), n <= (2 if cifar else 4)
    return (*rates, *(LOWEST if lowered else HIGHEST if raised else ())) if rates == WITHOUT else rates


def tried(data: str, n: int, label: str, found: Results) -> bool:
    """Return whether all rates were run: the best of some of them would be unfair."""
    rates = next(rates for name, _, _, rates in GRID if name == label)
    return all(r.settings["rows"] for r in found) or len(values(found, "rate")) == len(rates_at(data, n, rates))


def by_workers(results: Results, data: str, label: str) -> dict[int, float]:
    """Return the accuracy by number of workers, where all rates were run."""
    cells = {n: where(results, data=data, cluster=f"{n} equal nodes", label=label) for n in sorted(WORKERS_OF[data])}
    return {n: tested(best(runs, label))[0] for n, runs in cells.items() if runs and tried(data, n, label, runs)}


def draw_workers(results: Results, figure: Any) -> None:
    shown = values(results, "data")
    for axis, data in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for label in values(results, "label"):
            found = by_workers(results, data, label) or {math.nan: math.nan}  # colors stay
            axis.semilogx(list(found), list(found.values()), "o-", base=2, label=label)
        axis.set(title=data, xlabel="workers")
        axis.xaxis.set(major_formatter="{x:g}")
    figure.axes[0].set_ylabel("test accuracy in points, each at its best rate")
    figure.axes[0].legend()


def workers_measured(results: Results) -> str:
    said = []
    for data in values(results, "data"):
        found = {label: by_workers(results, data, label) for label in values(results, "label")}
        cells = (f"{label} {points_at(points)}" for label, points in found.items() if points)
        said.append(f"{data}: {'; '.join(cells)} workers.")
        for cluster in values(where(results, data=data), "cluster"):
            edge = at_edge(where(results, data=data, cluster=cluster))
            said += [f"{cluster}:{edge}"] if edge else []
    return f"Test points at the best rate on held-out rows, one seed. {' '.join(said)}"


def points_at(points: Mapping[int, float]) -> str:
    return f"{', '.join(f'{p:.1f}' for p in points.values())} at {', '.join(map(str, points))}"


NET = (
    "64 hidden units, batch 64, SGD; a tenth of the rate in the last 30 %. Each algorithm at its best rate on 10,000 "
    "held-out training rows, of three to five rates; where the best was the lowest or "
    "the highest of them, lower or higher ones were added. Ours and one node: the script's 0.02 alone. Nets, rates, "
    "epochs and all formulas are ours; 'literal' weights momentum and lambda g*g*(w - w_m) by 1/(1 + tau). What fails "
    "at rate 0.02 is momentum 0.9 under delay. "
)
BEST = "DDC-ASGD is best of ASGD, DC-ASGDK and DDC-ASGD; no number is given."
EXPERIMENTS = [
    Experiment("C1", "Fashion-MNIST, accuracy by epoch, 8 workers", BEST, NET + "8 equal nodes, Gamma(100) steps.",
               lambda quick: curve_runs("fashion_mnist", quick), order, draw_curves, c1_tables),
    Experiment("C2", "CIFAR-10, accuracy by epoch, 8 workers", BEST,
               NET + "8 equal nodes; images averaged over 2x2 pixels. LeNet-5's kept runs are not tuned.",
               lambda quick: curve_runs("cifar10", quick), order, draw_curves, c2_tables),
    Experiment("C3", "unequal speeds and unequal links",
               "With unequal nodes and links gradients are late: speed and accuracy suffer. No number.",
               NET + "12 nodes: 6 fast, 3 of speed 1/3, 3 behind links of 20 Mbit/s and 15 ms; others 1 Gbit/s, also "
               "the server; steps of 100 ms.",
               unequal_runs, order, draw_unequal, tuned_table),
    Experiment("C6", "accuracy over the number of workers",
               "DC-ASGDK is limited by the number of workers.", NET + "Equal nodes. One seed.",
               workers_runs, workers_measured, draw_workers),
]  # fmt: skip
