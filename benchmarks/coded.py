"""Coded SGD against SSGD and asynchronous SGD: time to an accuracy over 2 to 10 nodes of a described network.

    python benchmarks/coded.py                                # DNN on MNIST, about 10 minutes
    python benchmarks/coded.py --task cnn --mark 0.6 --factors 1,0.4 --networks "medium 1 Gbit/s"
    python benchmarks/coded.py --budget-s -1 --out benchmarks/results/coded.jsonl    # stored results, no training

A synchronous step with the sum of all blocks is the same for every placement (tests/single/test_hfdt_coded.py). So the
steps to the mark are trained once, with real gradients. The time of a step is that of hfdt's own algorithm, whose
packets cross the links of fdt/network on a simulated clock. Asynchronous SGD is trained in nfdt's simulator for every
number of nodes, at each of --factors times the script's rate, and the fastest counts. The batch is the script's own:
under coded SGD and SSGD n workers share it, under asynchronous SGD each takes whole batches. Trainings are stored in
--out, a JSON line each, and are not repeated.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from coded_training import SHAPE, TASKS, Kept, Run, Step, Task, cluster, train, weights
from harness import console, table

from hfdt import algorithm_registry
from hfdt.collectives.simulated import SimulatedWorld, on_simulated

WORDS = 2_520  # gradients are cut to this, which 1 to 10 divide, and links slowed alike: times stay
STEPS = 5  # simulated, of which the median is taken
PLACEMENTS = ("paper", "groups", "cyclic")
METHODS = {
    "asgd": "asynchronous SGD",
    "ring": "ring all-reduce",
    "ssgd": "SSGD multicast",
    **{placement: f"coded, {placement}" for placement in PLACEMENTS},
}
PAPER = {"dnn": "53.97 % and 26.89 %; r 3 of 8", "cnn": "39.11 % and 26.37 %; r 2 of 8"}
Times = dict[str, tuple[str, float | None]]  # by method: what it was best with, seconds to the mark


# -- a synchronous step ------------------------------------------------------------------------------------------------
def step_s(text: str, n: int, task: Task, words: int, rule: str, r: int) -> float:
    """Return the seconds of one synchronous step. `rule`: a placement, or "ring"."""
    world = SimulatedWorld(cluster(text, n, task, slower=words / WORDS))
    plan = None if rule == "ring" else algorithm_registry.make(f"coded(placement={rule!r})").plan(n, r)
    vector = np.zeros(WORDS, np.float32)

    def rank(comm: Any) -> list[float]:
        ends = []
        for _ in range(STEPS):
            if plan is None:
                comm.work(1 / n)
                comm.sum([vector], "ring")
            else:
                own = {b: vector for b, owners in enumerate(plan.owners) if comm.rank in owners}
                comm.work(len(own) / len(plan.owners))
                plan.total(own, comm)
            ends.append(comm.now_s)
        return ends

    ends = np.max(on_simulated(world, rank), axis=0)
    return float(np.median(np.diff(ends, prepend=0.0)))


def fastest_step(text: str, n: int, task: Task, words: int, method: str) -> tuple[int, float]:
    """Return (r, seconds) of the fastest redundancy; r is 0 for none."""
    if method not in PLACEMENTS:
        return 0, step_s(text, n, task, words, {"ssgd": "groups"}.get(method, method), 1)
    times = {}
    for r in range(1, n):
        if method != "groups" or n % r == 0:
            times[r] = step_s(text, n, task, words, method, r)
    return min(times.items(), key=lambda item: item[1])


# -- the table ---------------------------------------------------------------------------------------------------------
def alone(given: argparse.Namespace) -> Run:
    return Run(given.task, "", 1, given.seed, given.mark)


def asynchronous(given: argparse.Namespace, text: str, n: int) -> list[Run]:
    return [Run(given.task, text, n, given.seed, given.mark, factor) for factor in given.factors]


def show(given: argparse.Namespace, kept: Kept) -> None:
    """Print, for each network, a table of seconds to the mark and the gain by coding, and make a plot."""
    task, words, steps = TASKS[given.task], weights(given.task), kept[alone(given)]["steps"]
    if steps is None:
        console.print(f"{given.task}: SGD on one node has not reached {given.mark:.0%}: there is nothing to compare")
        return
    console.print(
        f"{given.task}: {words:,} weights, batch {task.batch}, SGD {task.rate:g}; a batch {task.step_s * 1e3:g} ms on "
        f"a node, Gamma({SHAPE:g}); {given.mark:.0%} after {steps} steps of SGD; paper: saves {PAPER[given.task]}"
    )
    curves: dict[str, dict[int, Times]] = {}
    for text in given.networks:
        curves[text] = {n: times(given, text, n, words, steps, kept) for n in given.nodes}
        heads = ["nodes", *METHODS, *(f"{placement} saves of ssgd, asgd" for placement in PLACEMENTS)]
        rows = [row(n, told) for n, told in curves[text].items()]
        table(f"{given.task} on {text}: seconds to {given.mark:.0%} (r; asgd: times the rate)", heads, rows)
    plot(given, curves)


def times(given: argparse.Namespace, text: str, n: int, words: int, steps: int, kept: Kept) -> Times:
    task = TASKS[given.task]
    fastest = kept.fastest(*asynchronous(given, text, n))
    found: Times = {"asgd": (f"{fastest[0].factor:g}", fastest[1]) if fastest else ("", None)}
    for method in list(METHODS)[1:]:
        step = Step(given.task, text, n, method)
        r, seconds = kept.step(step, lambda method=method: fastest_step(text, n, task, words, method))
        found[method] = str(r or ""), steps * seconds
    return found


def row(n: int, told: Times) -> list[str]:
    cells = [str(n)]
    for note, seconds in told.values():
        cells.append("-" if seconds is None else f"{seconds:.3g}" + (f" ({note})" if note else ""))
    cells += [
        ", ".join(saved(told[placement][1], told[peer][1]) for peer in ("ssgd", "asgd")) for placement in PLACEMENTS
    ]
    return cells


def saved(seconds: float | None, peer: float | None) -> str:
    return "-" if seconds is None or peer is None else f"{100 * (1 - seconds / peer):.0f} %"


def plot(given: argparse.Namespace, curves: dict[str, dict[int, Times]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(1, len(curves), figsize=(4.5 * len(curves) + 1.5, 4.5), squeeze=False)
    for axis, (text, by_nodes) in zip(axes[0], curves.items(), strict=True):
        for color, (method, label) in enumerate(METHODS.items()):
            points = [(n, told[method][1]) for n, told in by_nodes.items() if told[method][1] is not None]
            if points:
                style = "-" if method in PLACEMENTS else "--"
                axis.semilogy(*zip(*points, strict=True), style, color=f"C{color}", marker=".", label=label)
        axis.set(title=text, xlabel="nodes", ylabel=f"seconds to {given.mark:.0%}", xticks=given.nodes)
        axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter="")
        axis.grid(alpha=0.3, which="both")
    axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    task = TASKS[given.task]
    figure.suptitle(f"{given.task} on {task.data}: simulated time to {given.mark:.0%}, each method at its best")
    figure.tight_layout()
    figure.savefig(given.png, dpi=80)
    console.print(str(given.png))


# -- the command -------------------------------------------------------------------------------------------------------
def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="dnn")
    parser.add_argument("--mark", type=float, default=0.0, help="accuracy; 0: 82 % (dnn), 70 % (cnn)")
    parser.add_argument("--nodes", default="2,3,4,5,6,7,8,9,10")
    parser.add_argument("--networks", default="medium 1 Gbit/s,medium 10 Gbit/s,switch 1 Gbit/s,switch 10 Gbit/s")
    parser.add_argument("--factors", default="1", help="of the script's rate, for asynchronous SGD")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="of training, which the next call goes on with"
    )
    parser.add_argument("--out", type=Path, default=Path("coded.jsonl"))
    parser.add_argument("--png", type=Path, default=Path("coded.png"))
    given = parser.parse_args()
    given.mark = given.mark or TASKS[given.task].mark
    given.nodes = [int(n) for n in given.nodes.split(",")]
    given.networks = given.networks.split(",")
    given.factors = [float(factor) for factor in given.factors.split(",")]
    return given


def main() -> None:
    given = arguments()
    kept, began, missing = Kept(given.out), time.monotonic(), 0
    # Those that are compared are trained one after the other: the next need not go on for longer than the best.
    sides = [[alone(given)], *(asynchronous(given, text, n) for text in given.networks for n in given.nodes)]
    for side in sides:
        for run in side:
            if run in kept:
                continue
            if time.monotonic() - began > given.budget_s:
                missing += 1
                continue
            fastest = kept.fastest(*side)
            kept.add(run, train(run, fastest[1] if fastest else float("inf")))
            said = {key: value for key, value in kept[run].items() if key != "curve"}
            console.print(f"  {run.network or 'alone'}, {run.nodes} nodes, rate x {run.factor:g}: {said}", style="dim")
    if alone(given) in kept:
        show(given, kept)
    if missing:
        console.print(f"{missing} trainings are still to do: the same command goes on with them")


if __name__ == "__main__":
    main()
