"""Coded SGD against SSGD and asynchronous SGD: time to an accuracy over 2 to 10 nodes of a described network.

    python benchmarks/coded.py                                # DNN on MNIST, about 10 minutes; then only the table
    python benchmarks/coded.py --task cnn --nodes 2,6,10      # CNN on CIFAR-10, an hour
    python benchmarks/coded.py --networks "medium 1 Gbit/s"   # a part

A synchronous step with the sum of all blocks is the same step whatever the placement (tests/single/test_hfdt_coded.py),
so steps to the mark are trained once, for real, and a step's time is that of hfdt's own rule, its packets sent over
fdt/network's links on a simulated clock. Asynchronous SGD is trained for real in nfdt's simulator at every number of
nodes. The batch is the script's own: n workers share it under coded and SSGD, under asynchronous SGD each takes whole
ones. Trainings are kept in --out, a JSON line each, and not run twice.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import console, table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402

from fdt.network.cluster import Cluster, Group, Link, Speed  # noqa: E402
from hfdt import rulebook  # noqa: E402
from hfdt.comm.simulated import SimulatedWorld, on_simulated  # noqa: E402

WORDS = 40_320  # gradients are cut to this, and links slowed alike: times stay, and C(10, 5) blocks fit in memory
SHAPE = 100.0  # of the Gamma distribution of a step's time
STEPS = 5  # simulated, of which the median is taken
LATENCY_S = 1e-4
PLACEMENTS = ("paper", "groups", "cyclic")
PAPER = {"dnn": "53.97 % and 26.89 %; r 3 of 8", "cnn": "39.11 % and 26.37 %; r 2 of 8"}


# -- tasks -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Task:
    """`step_s`: a batch's gradient on one core of this machine, measured with nothing beside it. `every`: steps."""

    data: str
    batch: int
    rate: float
    step_s: float
    mark: float
    every: int
    longest: int  # steps


TASKS = {
    "dnn": Task("mnist", 100, 0.01, 0.004, 0.82, 10, 6_000),
    "cnn": Task("cifar10", 64, 0.05, 0.013, 0.70, 200, 12_000),
}


def network(task: str, shape: tuple[int, ...]) -> Any:
    """DNN: two hidden layers of 512. CNN: three convolutions and a hidden layer. SGD, no momentum: its delay is known
    to break asynchronous SGD (docs/algorithms.md)."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    body: list[Any] = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(512, "relu")]
    if task == "cnn":
        body = [
            layer
            for width in (16, 32, 64)
            for layer in (layers.Conv2D(width, 3, padding="same", activation="relu"), layers.MaxPooling2D())
        ]
        body += [layers.Flatten(), layers.Dense(64, "relu")]
    model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(TASKS[task].rate), loss)
    return model


def images(task: Task) -> tuple[Any, Any, Any, Any]:
    import keras

    (x, y), (tx, ty) = getattr(keras.datasets, task.data).load_data()
    x, tx = (a.reshape(len(a), *a.shape[1:3], -1).astype("float32") / 255 for a in (x, tx))
    return x, y.ravel().astype("int32"), tx, ty.ravel().astype("int32")


# -- networks ----------------------------------------------------------------------------------------------------------
def cluster(text: str, n: int, task: Task, slower: float = 1.0) -> Cluster:
    """`text`: "medium 1 Gbit/s" (a hub, the air: all share it) or "switch 100 Mbit/s" (full duplex links)."""
    kind, number, unit = text.split()
    link = Link(float(number) * {"Mbit/s": 1e6, "Gbit/s": 1e9}[unit] / 8 / slower, LATENCY_S)
    own, shared = (Link(), link) if kind == "medium" else (link, None)
    nodes = (Group("node", n, Speed(1.0, SHAPE)),)
    return Cluster(nodes, step_s=task.step_s, link=own, multicast=True, medium=shared)


def step_s(text: str, n: int, task: Task, words: int, rule: str, r: int) -> float:
    """Of one synchronous step. `rule`: a placement, or "ring"."""
    world = SimulatedWorld(cluster(text, n, task, slower=words / WORDS))
    plan = None if rule == "ring" else rulebook.make(f"coded(placement={rule!r})").plan(n, r)
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


# -- trainings ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """`network` "" and one node: plain SGD, whose steps are those of every synchronous rule."""

    task: str
    network: str
    nodes: int
    seed: int
    mark: float


class Reached(Exception):
    """Enough has been trained."""


def train(run: Run) -> dict[str, Any]:
    """Steps and simulated seconds to the mark (None: not reached), and what was reached."""
    task, began = TASKS[run.task], time.monotonic()
    made = cluster(run.network, run.nodes, task) if run.network else Cluster((Group("node", 1),), step_s=task.step_s)
    x, y, tx, ty = images(task)
    found: dict[str, Any] = {"steps": None, "seconds": None, "best": 0.0, "curve": []}
    pushes = 0

    def heard(seconds: float, kind: str, worker: int, tau: int) -> None:
        nonlocal pushes
        pushes += kind == "push"
        if kind != "push" or pushes % task.every:
            return
        reached = accuracy(session.model, tx, ty)
        found["best"] = max(found["best"], reached)
        found["curve"].append([pushes, seconds, reached])
        if reached >= run.mark:
            found.update(steps=pushes, seconds=seconds)
        if reached >= run.mark or pushes >= task.longest:
            raise Reached

    session = Simulated(run, x, y, made, heard)
    try:
        for epoch in range(1000):
            session.epoch(epoch)
    except Reached:
        pass
    return {**found, "wall_s": time.monotonic() - began}


class Simulated:
    """nfdt's simulator on one model, without a client. `model`: the server's."""

    def __init__(self, run: Run, x: Any, y: Any, made: Cluster, heard: Callable[..., None]) -> None:
        from client_shim.capture.data import capture_data
        from client_shim.capture.program import capture_program
        from fdt.blobs import LocalBlobs
        from fdt.job import FitArguments, JobSpec, State
        from fdt.keras import flavor_of
        from fdt.trainable import Trainable, build
        from nfdt.server.job import ServedJob
        from nfdt.simulation.session import Session
        from nfdt.step import Step

        task, blobs = TASKS[run.task], LocalBlobs.create()
        model = network(run.task, x.shape[1:])
        flavor = flavor_of(model)
        data = capture_data(flavor.name, blobs, x, y, batch_size=task.batch)
        flavor.build(model, data.spec)
        given = Trainable(flavor, model)
        state = State(blobs.put_arrays(given.model_arrays()), blobs.put_arrays(given.optimizer_arrays()))
        program = capture_program(flavor, model, blobs)
        options = {"rule": "asgd", "overlap": "off"}
        fit = FitArguments(batch_size=task.batch, epochs=1000, shuffle=True)
        spec = JobSpec(id="job", program=program, state=state, data=data.train, fit=fit, seed=run.seed, options=options)
        worker, served = build(program, blobs), build(program, blobs)
        worker.load(state, blobs)
        job = ServedJob(spec, served, blobs, shard=0, shards=1, workers=1)
        self.model = served.model
        self._session = Session(job, Step(worker), worker, made, lambda event: None, heard=heard)
        self._unchanged = State()

    def epoch(self, number: int) -> None:
        self._session.start_epoch(number, self._unchanged)


def accuracy(model: Any, x: Any, y: Any) -> float:
    blocks = range(0, len(x), 2000)
    right = [np.argmax(model(x[i : i + 2000], training=False), axis=1) == y[i : i + 2000] for i in blocks]
    return float(np.mean(np.concatenate(right)))


def read(out: Path) -> dict[Run, dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {Run(**line["run"]): line["result"] for line in lines}


# -- the table ---------------------------------------------------------------------------------------------------------
def best(text: str, n: int, task: Task, words: int, placement: str) -> tuple[int, float]:
    """(r, seconds a step) of the fastest redundancy."""
    times = {}
    for r in range(1, n):
        if placement != "groups" or n % r == 0:
            times[r] = step_s(text, n, task, words, placement, r)
    return min(times.items(), key=lambda item: item[1])


def show(given: argparse.Namespace, done: dict[Run, dict[str, Any]]) -> None:
    """For each network a table of seconds to the mark, what coding saves, and a picture."""
    task = TASKS[given.task]
    words = sum(int(np.prod(v.shape)) for v in network(given.task, shape_of(task)).trainable_variables)
    alone = done[Run(given.task, "", 1, given.seed, given.mark)]
    steps = alone["steps"]
    console.print(
        f"{given.task}: {words:,} weights, batch {task.batch}, SGD {task.rate:g}; a batch {task.step_s * 1e3:g} ms on "
        f"a node, Gamma({SHAPE:g}); {given.mark:.0%} after {steps} steps of SGD; paper: saves {PAPER[given.task]}"
    )
    curves = {}
    for text in given.networks:
        rows, curves[text] = [], {}
        for n in given.nodes:
            told = times(given, text, n, words, steps, done)
            curves[text][n] = told
            rows.append(row(n, told))
        heads = ["nodes", "asgd", "ring", "SSGD multicast", *PLACEMENTS, "best saves of SSGD", "of asgd"]
        table(f"{given.task} on {text}: seconds to {given.mark:.0%} (r)", heads, rows)
    plot(given, curves)


def shape_of(task: Task) -> tuple[int, ...]:
    return (28, 28, 1) if task.data == "mnist" else (32, 32, 3)


def times(
    given: argparse.Namespace, text: str, n: int, words: int, steps: int, done: dict[Run, dict[str, Any]]
) -> dict[str, tuple[int, float | None]]:
    """(r, seconds to the mark) by method."""
    task = TASKS[given.task]
    asynchronous = done.get(Run(given.task, text, n, given.seed, given.mark), {})
    found: dict[str, tuple[int, float | None]] = {"asgd": (0, asynchronous.get("seconds"))}
    found["ring"] = 0, steps * step_s(text, n, task, words, "ring", 1)
    found["ssgd"] = 0, steps * step_s(text, n, task, words, "groups", 1)
    for placement in PLACEMENTS:
        r, seconds = best(text, n, task, words, placement)
        found[placement] = r, steps * seconds
    return found


def row(n: int, told: dict[str, tuple[int, float | None]]) -> list[str]:
    cells = [str(n)]
    for method in ("asgd", "ring", "ssgd", *PLACEMENTS):
        r, seconds = told[method]
        cells.append("-" if seconds is None else f"{seconds:.3g}" + (f" ({r})" if r else ""))
    fastest = min(seconds for method in PLACEMENTS if (seconds := told[method][1]) is not None)
    for peer in ("ssgd", "asgd"):
        seconds = told[peer][1]
        cells.append("-" if seconds is None else f"{100 * (1 - fastest / seconds):.1f} %")
    return cells


def plot(given: argparse.Namespace, curves: dict[str, dict[int, dict[str, tuple[int, float | None]]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5.5 * len(curves), 4.5), squeeze=False)
    for axis, (text, by_nodes) in zip(axes[0], curves.items(), strict=True):
        for method in ("asgd", "ring", "ssgd", *PLACEMENTS):
            points = [(n, told[method][1]) for n, told in by_nodes.items() if told[method][1] is not None]
            if points:
                label = f"coded, {method}" if method in PLACEMENTS else {"ssgd": "SSGD multicast"}.get(method, method)
                axis.semilogy(*zip(*points, strict=True), marker=".", label=label)
        axis.set(title=text, xlabel="nodes", ylabel=f"seconds to {given.mark:.0%}")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(f"{given.task}, time to {given.mark:.0%}")
    figure.tight_layout()
    figure.savefig(given.png, dpi=80)
    console.print(str(given.png))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="dnn")
    parser.add_argument("--mark", type=float, default=0.0, help="accuracy; 0: 82 % (dnn), 70 % (cnn)")
    parser.add_argument("--nodes", default="2,3,4,5,6,7,8,9,10")
    parser.add_argument("--networks", default="medium 1 Gbit/s,medium 10 Gbit/s,switch 1 Gbit/s,switch 10 Gbit/s")
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
    return given


def main() -> None:
    given = arguments()
    wanted = [Run(given.task, "", 1, given.seed, given.mark)]
    wanted += [Run(given.task, text, n, given.seed, given.mark) for text in given.networks for n in given.nodes]
    done, began = read(given.out), time.monotonic()
    for run in wanted:
        if run in done or time.monotonic() - began > given.budget_s:
            continue
        done[run] = train(run)
        said = {key: value for key, value in done[run].items() if key != "curve"}
        console.print(f"  {run.network or 'alone'}, {run.nodes} nodes: {said}", style="dim")
        with given.out.open("a") as out:
            out.write(json.dumps({"run": asdict(run), "result": done[run]}) + "\n")
    if missing := sum(run not in done for run in wanted):
        console.print(f"{missing} of {len(wanted)} trainings are still to do: the same command goes on with them")
    else:
        show(given, done)


if __name__ == "__main__":
    main()
