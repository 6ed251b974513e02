"""B1, B4, B6, B8: accuracy by time and by samples of group synchronization on unequal nodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers import clusters
from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where
from benchmarks.papers.grouped_times import CLUSTERS, UNEQUAL

EPOCHS = 3
GOAL = 82.0  # points
COMPARED = (  # label, algorithm, rate and momentum: the best of B6
    ("group_sync", "group_sync", 0.16, 0.9),
    ("ssgd", "ssgd", 0.16, 0.9),
    ("asgd, tuned", "asgd", 0.02, 0.0),
    ("group_sync, captured momentum", "group_sync(momentum='captured')", 0.04, 0.9),
    ("ddc_asgd", "ddc_asgd", 0.04, 0.9),
)
SETTINGS = (
    "A net of 64 hidden units on Fashion-MNIST, batch 64, SGD at a constant rate with momentum 0.9; steps of 100 ms, "
    "links of no cost. "
)


def run(
    cluster: str, label: str, algorithm: str, rate: float, momentum: float, seed: int, quick: bool, **more: Any
) -> Run:
    settings = {"cluster": cluster, "label": label, "algorithm": algorithm, "rate": rate, "momentum": momentum}
    rows, epochs = (9_000, 1) if quick else (None, more.pop("epochs", EPOCHS))
    recipe = clusters.Recipe("fashion_mnist", rate, momentum, rows=rows, **more)
    settings |= {"seed": seed, "epochs": epochs, "rows": rows, **more}
    return Run(settings, lambda: clusters.train(recipe, CLUSTERS[cluster], algorithm, seed, epochs))


def seeds(quick: bool) -> range:
    return range(1 if quick else 3)


def at_epoch(results: Results, epoch: float) -> list[float]:
    """Return the accuracy of each seed after so many epochs."""
    found = [[p for at, _, p in r.figures["curve"] if at >= epoch - 0.01] for r in results]
    return [points[0] if points else r.figures["accuracy"] for points, r in zip(found, results, strict=True)]


def seconds_to(results: Results, goal: float) -> list[float]:
    """Return the simulated seconds to an accuracy, infinite where it was not reached, of each seed."""
    return [min((s for _, s, p in r.figures["curve"] if p >= goal), default=np.inf) for r in results]


def spread(points: list[float], form: str = ".1f") -> str:
    if not points:
        return "-"
    if not np.isfinite(points).all():
        return "not reached by all seeds"
    if len(points) == 1:
        return f"{points[0]:{form}}"
    return f"{np.mean(points):{form}} ({min(points):{form}} to {max(points):{form}})"


def mean_curve(results: Results) -> list[tuple[float, float, float]]:
    """Return epochs, simulated seconds and points, means over seeds."""
    length = min(len(r.figures["curve"]) for r in results)
    found: list[tuple[float, float, float]] = np.mean([r.figures["curve"][:length] for r in results], axis=0).tolist()
    return found


def draw_curves(results: Results, figure: Any) -> None:
    """Accuracy by simulated seconds and by epochs, a line for each label."""
    by_time, by_samples = figure.subplots(1, 2, sharey=True)
    for label in values(results, "label"):
        epochs, seconds, points = zip(*mean_curve(where(results, label=label)), strict=True)
        by_time.plot(seconds, points, ".-", label=label)
        by_samples.plot(epochs, points, ".-", label=label)
    by_time.set(xlabel="simulated seconds", ylabel="test accuracy in points")
    by_samples.set(xlabel="passes over the data (equal samples)")
    figure.legend(*by_time.get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)


def comparison(results: Results) -> Iterator[Table]:
    heads = ["algorithm", "1 epoch", f"{EPOCHS} epochs", f"seconds to {GOAL:g}", "seconds of an epoch", "staleness"]
    rows = []
    for label in values(results, "label"):
        found = where(results, label=label)
        epoch_s = [r.figures["simulated_s"] / r.figures["curve"][-1][0] for r in found]
        tau = [r.figures["tau"] for r in found]
        ends = [r.figures["accuracy"] for r in found]
        cells = (at_epoch(found, 1), ends, seconds_to(found, GOAL), epoch_s, tau)
        rows.append([label, *(spread(cell) for cell in cells)])
    yield Table(f"Test accuracy, mean of {len(values(results, 'seed'))} seeds (smallest to largest)", heads, rows)


# -- B1 ------------------------------------------------------------------------------------------------------------
def b1_runs(quick: bool) -> Iterator[Run]:
    for seed in seeds(quick):
        for label, algorithm, rate, momentum in COMPARED:
            yield run(UNEQUAL, label, algorithm, rate, momentum, seed, quick)


def b1_measured(results: Results) -> str:
    grouped, ssgd = where(results, label="group_sync"), where(results, label="ssgd")
    both = [r.settings["seed"] for r in grouped if where(ssgd, seed=r.settings["seed"])]
    pairs = [(where(grouped, seed=s)[0], where(ssgd, seed=s)[0]) for s in both]
    ahead = [a.figures["accuracy"] - b.figures["accuracy"] for a, b in pairs]
    times = [seconds_to([a], GOAL)[0] / seconds_to([b], GOAL)[0] for a, b in pairs]
    return (
        f"At equal samples ({EPOCHS} epochs) group_sync is {spread(ahead, '+.1f')} points against ssgd; to {GOAL:g} "
        f"points it takes {spread(times, '.2f')} of ssgd's time. {len(pairs)} seeds."
    )


# -- B4: ablation ----------------------------------------------------------------------------------------------------
ABLATION = (
    ("as it is (2 groups found)", "group_sync"),
    ("one rate for all groups", "group_sync(rate='equal')"),
    ("captured momentum, rate / staleness", "group_sync(momentum='captured')"),
    ("captured momentum, one rate", "group_sync(momentum='captured', rate='equal')"),
    ("captured momentum, rate / drift", "benchmarks/algorithms/group_sync_drift.py"),
    ("G = 1", "group_sync(groups=1)"),
    ("G = 2", "group_sync(groups=2)"),
    ("G = 3", "group_sync(groups=3)"),
    ("G = 6", "group_sync(groups=6)"),
    ("G = n = 12", "group_sync(groups=12)"),
)


def b4_runs(quick: bool) -> Iterator[Run]:
    for seed in seeds(quick):
        for label, algorithm in ABLATION:
            yield run(UNEQUAL, label, algorithm, 0.04 if "captured" in label else 0.16, 0.9, seed, quick)


def b4_measured(results: Results) -> str:
    cells = (f"{label}: {spread([r.figures['accuracy'] for r in where(results, label=label)])}" for label in
             values(results, "label"))  # fmt: skip
    return f"Points after {EPOCHS} epochs. {'; '.join(cells)}."


# -- B6: the rates ---------------------------------------------------------------------------------------------------
WAITING, DELAYED = (0.02, 0.04, 0.08, 0.16, 0.32), (0.01, 0.02, 0.04, 0.08)
RATES = (  # label, algorithm, momentum, rates
    ("asgd, no momentum", "asgd", 0.0, (0.1, 0.05, 0.02, 0.01, 0.005)),
    ("asgd, momentum 0.9", "asgd", 0.9, (0.02, 0.005, 0.002, 0.001, 0.0005)),
    ("group_sync", "group_sync", 0.9, WAITING),
    ("ssgd", "ssgd", 0.9, WAITING),
    ("group_sync, captured momentum", "group_sync(momentum='captured')", 0.9, WAITING),
    ("ddc_asgd", "ddc_asgd", 0.9, DELAYED),
)


def b6_runs(quick: bool) -> Iterator[Run]:
    for seed in range(10, 11 if quick else 12):
        for label, algorithm, momentum, rates in RATES[:2] if quick else RATES:
            for rate in rates[::2] if quick else rates:
                yield run(UNEQUAL, label, algorithm, rate, momentum, seed, quick, held_out=True)


def by_rate(results: Results, label: str) -> Mapping[float, list[float]]:
    found = where(results, label=label)
    return {rate: [r.figures["accuracy"] for r in where(found, rate=rate)] for rate in values(found, "rate")}


def draw_rates(results: Results, figure: Any) -> None:
    axis = figure.subplots()
    for label in values(results, "label"):
        found = by_rate(results, label)
        axis.semilogx(list(found), [np.mean(points) for points in found.values()], "o-", label=label)
    axis.set(xlabel="learning rate", ylabel=f"accuracy on held-out rows, {EPOCHS} epochs, points")
    axis.legend()


def b6_measured(results: Results) -> str:
    cells = []
    for label in values(results, "label"):
        found = by_rate(results, label)
        best = max(found, key=lambda rate: float(np.mean(found[rate])))
        cells.append(f"{label}: {spread(found[best])} points at rate {best:g}")
    return f"The best on held-out rows, {EPOCHS} epochs. {'; '.join(cells)}."


# -- B8: more than two speeds ----------------------------------------------------------------------------------------
def b8_runs(quick: bool) -> Iterator[Run]:
    for seed in seeds(quick):
        for label, algorithm, rate, momentum in COMPARED[:4]:
            yield run("four speeds", label, algorithm, rate, momentum, seed, quick)


PATENT = (
    "Grouped: little waiting, less harm by staleness than asynchronous, faster convergence. No experiment, no figure."
)
EXPERIMENTS = [
    Experiment(
        "B1",
        "grouped, synchronous and asynchronous training on unequal nodes",
        PATENT,
        SETTINGS + "benchmarks/unequal12.yaml: 8 nodes of speed 1, 4 of 1/3. Each algorithm has its best rate of B6, "
        "on held-out rows. The formulas of group_sync are ours. B7 is the spread over seeds: B1, B4 and B8 have the "
        "seeds 0 to 2, with smallest and largest; B6 has two, B9 one turn.",
        b1_runs,
        b1_measured,
        draw_curves,
        comparison,
    ),
    Experiment(
        "B4",
        "ablation: one rate for all groups, and the number of groups",
        "Each group has its own learning rate; no threshold and no number of groups is given.",
        SETTINGS + "As B1, rate 0.16, with captured momentum 0.04. One rate: every group's is the script's over the "
        "number of groups. G = 1 is ssgd; G = n has each node alone, all asynchronous. Three seeds (B7).",
        b4_runs,
        b4_measured,
        draw_curves,
        comparison,
    ),
    Experiment(
        "B6",
        "the rates of B1, B4 and B8, and asynchronous training with and without momentum",
        "At equal iterations asynchronous training converges worse than synchronous. No figure.",
        SETTINGS + "As B1, on 10,000 training rows that are not trained on, seeds 10 and 11 (B7: two). What fails at "
        "the script's rate is momentum 0.9 under delay.",
        b6_runs,
        b6_measured,
        draw_rates,
    ),
    Experiment(
        "B8",
        "more than two speeds",
        PATENT,
        SETTINGS + "3 nodes each of speed 1, 1/2, 1/4, 1/8: four groups. Otherwise as B1, three seeds (B7). Rates are "
        "the best on the cluster of B1 (B6), not on this one.",
        b8_runs,
        b1_measured,
        draw_curves,
        comparison,
    ),
]  # fmt: skip
