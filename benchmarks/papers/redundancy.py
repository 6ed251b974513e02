"""E5: the time of one coded batch over its redundancy, on 8 nodes (figures 12 and 13)."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

NODES = 8
NETWORKS = ("medium 1 Gbit/s", "medium 5 Gbit/s", "medium 10 Gbit/s")
TASKS = ("dnn", "cnn")


def runs(quick: bool) -> Iterator[Run]:
    for task in TASKS:
        for network in NETWORKS[:1] if quick else NETWORKS:
            for r in (1, 2, 7) if quick else range(1, NODES):
                settings = {"task": task, "network": network, "nodes": NODES, "r": r}
                yield Run(settings, lambda task=task, network=network, r=r: step(task, network, r))


def step(task: str, network: str, r: int) -> Mapping[str, Any]:
    """Return the seconds of a synchronous step; r = 1 is SSGD, which multicasts whole gradients."""
    import coded
    from coded_training import TASKS as NETS
    from coded_training import weights

    words, placement = weights(task), "paper" if r > 1 else "groups"
    return {"step_s": coded.step_s(network, NODES, NETS[task], words, placement, r), "calculation_s": NETS[task].step_s}


def formula(results: Results) -> list[float]:
    """Return T(r) = r T_calc + T_comm / r in seconds, both of SSGD with multicast, for r = 1, 2, ..."""
    ssgd = next(found for found in results if found.settings["r"] == 1).figures
    calculation = ssgd["calculation_s"] / NODES
    return [r * calculation + (ssgd["step_s"] - calculation) / r for r in (f.settings["r"] for f in results)]


def best(results: Results) -> Any:
    return min(results, key=lambda found: found.figures["step_s"]).settings["r"]


def draw(results: Results, figure: Any) -> None:
    for axis, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        for color, network in enumerate(values(results, "network")):
            found = where(results, task=task, network=network)
            redundancy = [f.settings["r"] for f in found]
            axis.semilogy(redundancy, [f.figures["step_s"] for f in found], f"C{color}o-", label=network)
            if found and redundancy[0] == 1:
                axis.semilogy(redundancy, formula(found), f"C{color}--", label=f"{network}, the source's formula")
        axis.set(title=task.upper(), xlabel="redundancy r", ylabel="seconds of one batch, 8 nodes")
    axis.legend(fontsize=7)


def measured(results: Results) -> str:
    cells = [(t, n, where(results, task=t, network=n)) for t in TASKS for n in values(results, "network")]
    found = ", ".join(f"{task.upper()} on {network}: {best(cell)}" for task, network, cell in cells if cell)
    return f"Best r of the source's own placement: {found}."


def tables(results: Results) -> Iterator[Table]:
    heads = ["task", "network", *(f"r = {r}" for r in values(results, "r"))]
    rows = [
        [task, network, *(f"{1e3 * f.figures['step_s']:.3g}" for f in where(results, task=task, network=network))]
        for task in TASKS
        for network in values(results, "network")
    ]
    yield Table("Milliseconds of one batch", heads, rows)


EXPERIMENTS = [
    Experiment(
        "E5",
        "time of a batch over the redundancy",
        "At 8 nodes the time is least at r = 3 (DNN) and r = 2 (CNN); T = r T_calc + T_comm / r.",
        "In the source's placement a node sends C(n-1, r) G / r, since a block's gradient is as large as a batch's: "
        "7, 10.5, 11.7, 8.75, 4.2, 1.17, 0.14 times G for r = 1 to 7. So communication does not fall as 1/r, and the "
        "best r is the largest where the network is narrow. Link rates and nets are ours.",
        runs,
        measured,
        draw,
        tables,
    )
]
