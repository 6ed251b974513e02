"""D2 to D5: the time of DANE on LeNets by the number of GPUs (figures 3 to 6), beside allreduce on the same clock."""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.papers.clusters import described
from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where
from benchmarks.papers.lenets import BATCH, PAIRS, ROWS
from benchmarks.papers.server_star import on_star

GPUS = (1, 2, 4, 6, 8)
ROUNDS = 20
WEIGHTS = {
    ("mnist", "lenet3"): 142_606,
    ("mnist", "lenet5"): 61_706,
    ("cifar10", "lenet3"): 142_906,
    ("cifar10", "lenet5"): 62_006,
}
# Seconds of a batch of 100, forward and backward, on one hyperthread of a busy machine (TensorFlow, one thread).
STEP_S = {
    ("mnist", "lenet3"): 0.0071,
    ("mnist", "lenet5"): 0.0095,
    ("cifar10", "lenet3"): 0.0088,
    ("cifar10", "lenet5"): 0.0112,
}
GPU_S = 0.001  # assumed: the source names no GPU
LINK_BPS = 1e9 / 8  # of a machine, and of the server, each way
LATENCY_S = 1e-4
SUM_BPS = 2e9  # bytes of gradients that the server adds in a second, one worker after another


def runs(quick: bool, data: str, net: str) -> Iterator[Run]:
    for method in ("dane", "allreduce"):
        for step_s in (STEP_S[data, net], GPU_S):
            for gpus in (1, 2) if quick else GPUS:
                settings = {"method": method, "gpus": gpus, "batch_s": step_s, "rounds": ROUNDS, "link_gbit": 1}
                yield Run(settings, partial(measure, data, net, method, gpus, step_s))


def measure(data: str, net: str, method: str, gpus: int, step_s: float) -> Mapping[str, Any]:
    return {"seconds": round(ROUNDS * round_s(method, gpus, step_s, 4 * WEIGHTS[data, net]), 5)}


def seconds(data: str, net: str, gpus: int, rounds: int) -> float:
    return rounds * round_s("dane", gpus, STEP_S[data, net], 4 * WEIGHTS[data, net])


def allreduce_s(data: str, net: str, gpus: int, batches: int) -> float:
    """Return the seconds of so many batches of BATCH rows, each divided among the GPUs, with an average each."""
    epoch_s = round_s("allreduce", gpus, STEP_S[data, net] / gpus, 4 * WEIGHTS[data, net])
    return batches * epoch_s / -(-ROWS // (gpus * BATCH))


@cache
def round_s(method: str, gpus: int, step_s: float, nbytes: int) -> float:
    """Return the simulated seconds of a round, or of an epoch of allreduce.

    DANE passes twice over a worker's rows: for the gradient, and to minimize; two averages go through the server.
    Allreduce has an average for each batch of 100 rows a GPU, by a ring.
    """
    from hfdt.collectives.simulated import SimulatedWorld, on_simulated

    batches, vector = -(-ROWS // (gpus * BATCH)), np.zeros(nbytes // 4, np.float32)
    if method == "dane":

        def rank(comm: Any) -> None:
            for _ in range(2):
                comm.work(batches)
                comm.add(vector)

        return on_star(described(cluster_file(gpus, step_s, server=True)), rank, SUM_BPS * step_s)
    world = SimulatedWorld(described(cluster_file(gpus, step_s, server=False)))
    on_simulated(world, lambda comm: (comm.work(1), comm.sum([vector], "average")))
    return batches * world.now_s


def cluster_file(gpus: int, step_s: float, server: bool) -> str:
    """Return the file of machines of two GPUs, which share their machine's link, and a server."""
    link = f"{{bandwidth: {8e-9 * LINK_BPS:g} Gbit/s, latency: {1e3 * LATENCY_S:g} ms}}"
    nodes = [f"{{name: machine-{k // 2}, count: {min(2, gpus - k)}, uplink: {link}}}" for k in range(0, gpus, 2)]
    nodes += server * [f"{{name: adder, count: 1, link: {link}}}"]
    return f"step: {step_s:g} s\nnodes:\n" + "".join(f"  - {node}\n" for node in nodes)


def draw(results: Results, figure: Any) -> None:
    from matplotlib.ticker import LogLocator

    for axis, step_s in zip(figure.subplots(1, 2), values(results, "batch_s"), strict=False):
        for color, method in enumerate(values(results, "method")):
            found = where(results, method=method, batch_s=step_s)
            gpus, times = [f.settings["gpus"] for f in found], [f.figures["seconds"] for f in found]
            axis.loglog(gpus, times, f"C{color}o-", label=method)
            if method == "dane" and gpus[:1] == [1]:
                axis.loglog(gpus, [times[0] / n for n in gpus], "k:", label="halved when GPUs double")
        axis.set(xlabel="GPUs", ylabel=f"simulated seconds of {ROUNDS} rounds or epochs", xticks=GPUS)
        axis.set(title=f"a batch of 100: {1e3 * step_s:g} ms")
        axis.xaxis.set(major_formatter="{x:g}", minor_formatter="")
        axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter="")
    figure.axes[0].legend()


def measured(results: Results) -> str:
    said = []
    for step_s in values(results, "batch_s"):
        found = where(results, method="dane", batch_s=step_s)
        times = {f.settings["gpus"]: f.figures["seconds"] for f in found}
        pairs = [f"{times[n] / times[2 * n]:.2f} from {n} to {2 * n}" for n in (1, 2, 4) if {n, 2 * n} <= set(times)]
        said.append(f"at {1e3 * step_s:g} ms a batch DANE gets faster by a factor of {', '.join(pairs)} GPUs")
    return "; ".join(said) + "."


def tables(results: Results) -> Iterator[Table]:
    heads = ["method", "ms a batch", *(f"{n} GPUs" for n in values(results, "gpus"))]
    rows = [
        [m, f"{1e3 * step_s:g}", *(f"{f.figures['seconds']:.3g}" for f in where(results, method=m, batch_s=step_s))]
        for m in values(results, "method")
        for step_s in values(results, "batch_s")
    ]
    yield Table(f"Simulated seconds of {ROUNDS} rounds (DANE) or epochs (allreduce)", heads, rows)


def experiment(number: int, data: str, net: str) -> Experiment:
    return Experiment(
        f"D{number}",
        f"time of DANE by the number of GPUs, {data} {net}",
        "Time keeps falling as GPUs are added; as GPUs double it nearly halves. The unit is lost.",
        "GPU, network, rounds and layers are not stated: here 20 rounds, a machine of two GPUs and the server have a "
        "link of 1 Gbit/s each, the server adds gradients one after another at 2 GB/s, and a batch takes what one "
        "core takes, or 1 ms as on an assumed GPU. The GPUs of one machine exchange at no cost by allreduce. A round "
        "is two passes over the rows, so one GPU takes twice the time of SGD; DANE's gain is that it averages twice a "
        "round. Time does not say whether its rounds are worth as many epochs: see D7.",
        partial(runs, data=data, net=net),
        measured,
        draw,
        tables,
    )


EXPERIMENTS = [experiment(number, *pair) for number, pair in enumerate(PAIRS, 2)]
