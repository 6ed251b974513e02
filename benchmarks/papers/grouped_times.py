"""B2, B3, B5: what group synchronization does to nodes and server. Times alone: no net is trained."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers import clusters
from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

ALGORITHMS = ("ssgd", "asgd", "group_sync")
UNEQUAL = "unequal12.yaml"
FOUR_SPEEDS = """\
step: 100 ms
nodes:
  - {name: full, count: 3, speed: {distribution: gamma, mean: 1, shape: 100}}
  - {name: half, count: 3, speed: {distribution: gamma, mean: 0.5, shape: 100}}
  - {name: quarter, count: 3, speed: {distribution: gamma, mean: 0.25, shape: 100}}
  - {name: eighth, count: 3, speed: {distribution: gamma, mean: 0.125, shape: 100}}
"""
FLUCTUATING = """\
step: 100 ms
link: {bandwidth: 1 Gbit/s, latency: 0.2 ms}
nodes:
  - name: node
    count: 64
    speed: {distribution: gamma, mean: 1, shape: 100}
    slowdowns: {every: 20 s, last: 4 s, factor: 4}
"""
CLUSTERS = {UNEQUAL: str(clusters.UNEQUAL), "four speeds": FOUR_SPEEDS, "64 fluctuating": FLUCTUATING}
NBYTES = 228_000  # of the net of B1
WINDOW_S = 0.1  # in which requests are counted


def runs_of(names: tuple[str, ...], algorithms: tuple[str, ...], quick: bool) -> Iterator[Run]:
    for seed in range(1 if quick else 3):
        for name in names[:1] if quick else names:
            for algorithm in algorithms:
                steps = (8 if quick else 60) * len(clusters.described(CLUSTERS[name]).workers)
                settings = {"cluster": name, "algorithm": algorithm, "seed": seed, "batches": steps}
                yield Run(settings, lambda n=name, a=algorithm, s=seed, k=steps: measure(n, a, s, k))


def measure(cluster: str, algorithm: str, seed: int, batches: int) -> Mapping[str, Any]:
    """Return what the nodes did and when the server was asked, in one epoch of so many batches."""
    clock = clusters.timed(CLUSTERS[cluster], algorithm, batches, seed, NBYTES)
    windows = np.bincount((np.array(clock.arrivals) / WINDOW_S).astype(int)) / WINDOW_S
    return {
        "seconds": clock.now_s,
        "idle": [round(share, 4) for share in clock.idle()],
        "pushes": clock.pushes,
        "speed": [node.group.speed.mean for node in clusters.described(CLUSTERS[cluster]).workers],
        "requests_per_s": len(clock.arrivals) / clock.now_s,
        "busiest": float(np.max(windows)),
        "tau": clock.staleness[0] / max(1, clock.staleness[1]),
    }


def mean(results: Results, key: str) -> Any:
    """Return the mean of a figure over seeds: of each node, where it is a list."""
    return np.mean([found.figures[key] for found in results], axis=0)


# -- B2: idle shares -----------------------------------------------------------------------------------------------
def idle_runs(quick: bool) -> Iterator[Run]:
    return runs_of((UNEQUAL, "four speeds"), ALGORITHMS, quick)


def draw_by_node(results: Results, figure: Any, key: str, label: str) -> None:
    names = values(results, "cluster")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        algorithms = [a for a in values(results, "algorithm") if where(results, cluster=name, algorithm=a)]
        for place, algorithm in enumerate(algorithms):
            shares = mean(where(results, cluster=name, algorithm=algorithm), key)
            at = np.arange(len(shares)) + (place - 1) * 0.27
            axis.bar(at, shares, 0.26, label=algorithm)
        axis.set(title=name, xlabel="node, fastest first", ylabel=label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)


def idle_measured(results: Results) -> str:
    cells = []
    for name in values(results, "cluster"):
        shares = {a: where(results, cluster=name, algorithm=a) for a in ALGORITHMS}
        said = ", ".join(f"{a} {100 * statistics.fmean(mean(f, 'idle')):.0f} %" for a, f in shares.items() if f)
        cells.append(f"{name}: {said}")
    return f"Idle share, mean of all nodes. {'; '.join(cells)}."


def idle_tables(results: Results) -> Iterator[Table]:
    for name in values(results, "cluster"):
        rows = []
        for algorithm in ALGORITHMS:
            if found := where(results, cluster=name, algorithm=algorithm):
                by_speed = by_group(found[0].figures["speed"], mean(found, "idle"))
                rows.append([algorithm, *(f"{100 * share:.0f} %" for share in by_speed.values()), seconds(found)])
        speeds = [f"speed {speed:.3g}" for speed in by_speed]
        yield Table(f"Idle share of a node, {name}", ["algorithm", *speeds, "seconds of an epoch"], rows)


def seconds(results: Results) -> str:
    return f"{float(mean(results, 'seconds')):.1f}"


def by_group(speeds: list[float], figures: Any) -> dict[float, float]:
    """Return the mean figure of the nodes of each speed."""
    return {s: statistics.fmean(f for s_, f in zip(speeds, figures, strict=True) if s_ == s) for s in speeds}


# -- B3: samples by speed ------------------------------------------------------------------------------------------
def samples_measured(results: Results) -> str:
    cells = []
    for name in values(results, "cluster"):
        if found := where(results, cluster=name, algorithm="group_sync"):
            given = by_group(found[0].figures["speed"], mean(found, "pushes"))
            fastest = max(given)
            ratios = ", ".join(f"{given[s] / given[fastest]:.2f} at speed {s / fastest:.2f}" for s in given)
            cells.append(f"{name}: {ratios}")
    return f"Batches of a node under group_sync, beside those of the fastest. {'; '.join(cells)}."


def samples_tables(results: Results) -> Iterator[Table]:
    for name in values(results, "cluster"):
        found = {a: where(results, cluster=name, algorithm=a) for a in ALGORITHMS}
        given = {a: by_group(f[0].figures["speed"], mean(f, "pushes")) for a, f in found.items() if f}
        speeds = next(iter(given.values()))
        rows = [[f"{speed:.3g}", *(f"{batches[speed]:.1f}" for batches in given.values())] for speed in speeds]
        yield Table(f"Batches of a node in an epoch, {name}", ["speed", *given], rows)


# -- B5: a large cluster of equal nodes that fluctuate ---------------------------------------------------------------
LARGE = ("ssgd", "asgd", "group_sync", "group_sync(groups=2)", "group_sync(groups=8)", "group_sync(ratio=4)")


def large_runs(quick: bool) -> Iterator[Run]:
    return runs_of(("64 fluctuating",), LARGE[::2] if quick else LARGE, quick)


def draw_large(results: Results, figure: Any) -> None:
    names = values(results, "algorithm")
    left, right = figure.subplots(1, 2, sharey=True)
    found = [where(results, algorithm=name) for name in names]
    left.barh(names, [100 * statistics.fmean(mean(f, "idle")) for f in found])
    left.set(xlabel="idle share of a node in per cent")
    right.barh(names, [mean(f, "requests_per_s") for f in found], 0.8, label="mean")
    right.scatter([mean(f, "busiest") for f in found], names, color="C1", label="busiest 0.1 s", zorder=3)
    right.set(xlabel="requests per second at the server")
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8)
    left.invert_yaxis()


def large_measured(results: Results) -> str:
    cells = []
    for name in values(results, "algorithm"):
        found = where(results, algorithm=name)
        idle, rate, peak = (float(np.mean(mean(found, key))) for key in ("idle", "requests_per_s", "busiest"))
        cells.append(f"{name} {100 * idle:.0f} % idle, {rate:.0f} requests a second (busiest {peak:.0f})")
    return f"64 nodes: {'; '.join(cells)}."


def large_tables(results: Results) -> Iterator[Table]:
    heads = ["algorithm", "seconds of an epoch", "idle share", "requests per second", "busiest 0.1 s", "mean staleness"]
    rows = []
    for name in values(results, "algorithm"):
        found = where(results, algorithm=name)
        idle, rate, peak, tau = (float(np.mean(mean(found, k))) for k in ("idle", "requests_per_s", "busiest", "tau"))
        rows.append([name, seconds(found), f"{100 * idle:.0f} %", f"{rate:.0f}", f"{peak:.0f}", f"{tau:.1f}"])
    yield Table("64 equal nodes with slow periods", heads, rows)


EXPERIMENTS = [
    Experiment(
        "B2",
        "idle share of each node",
        "Under synchronous rounds fast nodes wait for the slowest; grouped, little waiting inside a group and none "
        "between groups. No figure.",
        "The source has no experiment. benchmarks/unequal12.yaml (8 nodes of speed 1, 4 of 1/3) and one of four speeds "
        "(3 nodes each of 1, 1/2, 1/4, 1/8), 100 ms a step, links of no cost. 5 common rounds, in which speeds are "
        "measured, and the last round are in the shares.",
        idle_runs,
        idle_measured,
        lambda results, figure: draw_by_node(results, figure, "idle", "idle share"),
        idle_tables,
    ),
    Experiment(
        "B3",
        "samples of a node against its speed",
        "Better nodes get more training data. No figure.",
        "The source allots the data beforehand; here a node's share follows from the rounds that its group takes. "
        "Clusters as in B2; common rounds of the start give all nodes equal shares.",
        idle_runs,
        samples_measured,
        lambda results, figure: draw_by_node(results, figure, "pushes", "batches in an epoch"),
        samples_tables,
    ),
    Experiment(
        "B5",
        "a large cluster of equal nodes whose speeds fluctuate",
        "In a large cluster of equal nodes, fluctuation and the server's request load make synchronous rounds wait, "
        "too. No figure.",
        "64 nodes, each four times slower for 4 s every 20 s (means); links of 1 Gbit/s, also the server's; 228 kB of "
        "weights. Idle includes transfers. A group that is measured over many steps cannot follow slow periods of 4 s: "
        "grouping separates slow nodes while they are slow, and groups again when a time has changed.",
        large_runs,
        large_measured,
        draw_large,
        large_tables,
    ),
]
