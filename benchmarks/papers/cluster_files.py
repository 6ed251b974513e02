"""The cluster files of the experiments on the simulated clock; of files that differ in the number of nodes, one."""

from collections.abc import Iterable, Iterator

from benchmarks.papers import (
    clusters,
    compensation,
    control_end,
    convergence,
    grouped_real,
    lenet_time,
    redundancy,
    ridge,
    server_rate,
)
from benchmarks.papers import synchronous as c4
from benchmarks.papers.coded_runs import CELLS, CURVES
from benchmarks.papers.coded_training import TASKS, cluster_file
from benchmarks.papers.grouped_times import CLUSTERS, UNEQUAL

EQUAL = compensation.EQUAL.format(n=compensation.WORKERS)
GROUPED = {"B5": "64 fluctuating", "B8": "four speeds"}  # the others: UNEQUAL
FILES = {
    "A1": {"speeds 1:3": server_rate.cluster(4, server_rate.SPEEDS["1:3"]), "16 workers": server_rate.cluster(16, 1.0)},
    "A2": {"emulated": control_end.CLUSTER.format(step_ms=20)},
    "A3": {"NFDT": compensation.EQUAL.format(n=4)},
    "B9": {"emulated": grouped_real.CLUSTER},
    "C1": {"equal": EQUAL},
    "C2": {"equal": EQUAL},
    "C3": {"unequal": compensation.UNEQUAL},
    "C4": {"16 workers": c4.CLUSTER.format(step=c4.STEP_S, link=c4.BITS_PER_S, n=16)},
    "C6": {"equal": EQUAL},
    "D1": {"8 machines and the server": ridge.cluster_file(8, server=True)},
    "D6": {"4 machines and the server": ridge.cluster_file(convergence.WORKERS, server=True)},
}


def of(name: str) -> Iterator[tuple[str, str]]:
    """Yield the description and the text of each cluster file of an experiment."""
    yield from FILES.get(name, {}).items()
    if name in ("D2", "D3", "D4", "D5", "D7"):
        yield "8 GPUs and the server", lenet_time.cluster_file(8, lenet_time.GPU_S, server=True)
    elif name in ("B2", "B3"):
        yield from ((known, text(known)) for known in (UNEQUAL, "four speeds"))
    elif name.startswith("B") and name not in FILES:
        yield GROUPED.get(name, UNEQUAL), text(GROUPED.get(name, UNEQUAL))
    elif name == "E5":
        yield from coded(
            ((task, n) for task in TASKS for n in (*redundancy.NETWORKS, redundancy.WHOLE_NETWORKS[task])), 8
        )
    elif name.startswith("E"):
        yield from coded(((c.task, c.network) for c in (CURVES if name in ("E1", "E2") else CELLS)), 10)


def text(cluster: str) -> str:
    return clusters.UNEQUAL.read_text() if cluster == UNEQUAL else CLUSTERS[cluster]


def coded(used: Iterable[tuple[str, str]], nodes: int) -> Iterator[tuple[str, str]]:
    for task, network in dict.fromkeys(used):
        yield f"{task}, {network}", cluster_file(network, nodes, TASKS[task])
