"""DANE and ADMM beside gradient descent and allreduce: averages against accuracy.

`ridge`: ridge regression, exact minimisers, f - f* against rounds and against averages, a table and a PNG.
`networks`: LeNets on MNIST and CIFAR-10 through HFDT's own session, its ranks threads of this process: real gradients,
real averages, no network. What counts is accuracy and rounds, which do not depend on where ranks are; not seconds.
`allreduce`: the averages that allreduce needs on the same network.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from hfdt.comm.inprocess import on_ranks

ROWS, WORKERS, WIDTH, PENALTY = (6_000, 10_000, 14_000, 18_000), (1, 2, 4, 8), 500, 0.005
MARK = 1e-6  # of f - f* at the start
RHOS = np.geomspace(0.03, 10, 16)
PAPER = {("mnist", "lenet5", 2): 0.9914, ("mnist", "lenet5", 4): 0.9897}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ridge", "networks", "allreduce"])
    parser.add_argument("--png", default="dane.png")
    parser.add_argument("--rounds", type=int, default=12, help="ridge: rounds shown; networks: epochs of dane")
    parser.add_argument("--data", choices=["mnist", "cifar10"], default="mnist")
    parser.add_argument("--net", choices=["lenet3", "lenet5"], default="lenet5")
    parser.add_argument("--rule", default="dane")
    parser.add_argument("-np", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.02)
    return parser.parse_args()


# -- ridge regression --------------------------------------------------------------------------------------------------
@dataclass
class Quadratic:
    """O_i(w) = |X w - y|^2 / n + PENALTY |w|^2 as a rule sees it (hfdt/rule.py, Shard), and its exact minimiser."""

    x: np.ndarray
    y: np.ndarray
    w0: np.ndarray = field(default_factory=lambda: np.zeros(WIDTH))

    def __post_init__(self) -> None:
        self.hessian = 2 * self.x.T @ self.x / len(self.x) + 2 * PENALTY * np.eye(WIDTH)
        self.b = 2 * self.x.T @ self.y / len(self.x)
        self.values, self.vectors = np.linalg.eigh(self.hessian)  # solved once for every mu

    def gradient(self) -> list[np.ndarray]:
        return [self.hessian @ self.w0 - self.b]

    def curvature(self, direction: list[Any]) -> list[np.ndarray]:
        return [self.hessian @ np.asarray(direction[0])]

    def minimised(self, task: Any) -> list[np.ndarray]:
        target = self.b + np.asarray(task.linear[0]) + task.mu * self.w0
        return [self.vectors @ (self.vectors.T @ target / (self.values + task.mu))]

    def gap(self, w: Any) -> float:
        """f(w) - f*, relative to that of w = 0: (w - w*) . H (w - w*) / 2, which does not cancel."""
        best = self.vectors @ (self.vectors.T @ self.b / self.values)
        away = np.asarray(w) - best
        return float(away @ self.hessian @ away / (best @ self.hessian @ best))


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(rows)
    x = draw.normal(size=(rows, WIDTH))
    return x, x @ np.ones(WIDTH) + draw.normal(size=rows)


@dataclass
class Curve:
    """f - f*, relative to its start, after each round; averages made by then."""

    gaps: list[float]
    averages: list[int]
    note: str = ""

    def rounds(self) -> int | None:
        return next((i for i, gap in enumerate(self.gaps) if gap < MARK), None)


def ruled(text: str, shards: list[Quadratic], whole: Quadratic, rounds: int) -> Curve:
    import tensorflow as tf

    from hfdt import rulebook
    from hfdt.rounds import RoundGroup

    rule = rulebook.make(text)

    def work(comm: Any) -> Curve:
        tally = tf.Variable([len(shards[comm.rank].x), len(whole.x)], dtype=tf.int64)
        group, shard = RoundGroup(comm, tally), shards[comm.rank]
        w: list[Any] = [np.zeros(WIDTH)]
        state, curve, task = rule.init(w), Curve([1.0], [0]), None
        for _ in range(rounds):
            shard.w0 = np.asarray(w[0])
            task, state = rule.begin(state, w, shard, group)
            w, state = rule.end(state, w, shard.minimised(task), group)
            curve.gaps.append(whole.gap(w[0]))
            curve.averages.append(group._calls)
        curve.note = f"mu {task.mu:.2f}"
        return curve

    return on_ranks(len(shards), work)[0]


def descent(whole: Quadratic, rounds: int) -> Curve:
    """Gradient descent at its best fixed step, 2 / (largest + smallest eigenvalue)."""
    w, curve = np.zeros(WIDTH), Curve([1.0], [0])
    for i in range(rounds):
        w = w - 2 / (whole.values[0] + whole.values[-1]) * (whole.hessian @ w - whole.b)
        curve.gaps.append(whole.gap(w))
        curve.averages.append(i + 1)
    return curve


def admm(shards: list[Quadratic], whole: Quadratic, rounds: int) -> Curve:
    """At the best of RHOS for this very problem: a better start than DANE gets, whose mu is its own."""
    curves = [(rho, ruled(f"admm(rho={rho})", shards, whole, rounds)) for rho in RHOS]
    rho, curve = min(curves, key=lambda pair: pair[1].rounds() or pair[1].gaps[-1] + rounds)
    curve.note = f"rho {rho:.2f}"
    return curve


def ridge(args: argparse.Namespace) -> int:
    cells: dict[tuple[int, int], dict[str, Curve]] = {}
    print("rounds (averages) until f - f* is below 1e-6 of its start")
    print("     N  m   dane                    admm, best rho          gradient descent, best step")
    missed = 0
    for rows in ROWS:
        x, y = data(rows)
        whole = Quadratic(x, y)
        for m in WORKERS:
            shards = [Quadratic(a, b) for a, b in zip(np.split(x, m), np.split(y, m), strict=True)]
            cell = {
                "dane": ruled("dane(solver='cg')", shards, whole, args.rounds),
                "admm": admm(shards, whole, args.rounds),
                "gradient descent": descent(whole, args.rounds),
            }
            cells[rows, m] = cell
            print(f"{rows:6} {m:2}   " + "".join(f"{told(curve):24}" for curve in cell.values()), flush=True)
            dane = cell["dane"].rounds()
            ahead = dane is not None and all(dane <= (c.rounds() or args.rounds + 1) for c in cell.values())
            missed += not (ahead and dane <= 8)
    print("dane: 8 rounds or fewer and ahead in every cell:", "met" if not missed else f"MISSED in {missed}")
    plot(cells, args.png)
    return 0


def told(curve: Curve) -> str:
    reached = curve.rounds()
    words = f"more than {len(curve.gaps) - 1}" if reached is None else f"{reached} ({curve.averages[reached]})"
    return f"{words} {curve.note}"


def plot(cells: dict[tuple[int, int], dict[str, Curve]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(WORKERS), 2 * len(ROWS), figsize=(22, 11), sharey=True, squeeze=False)
    for (rows, m), cell in cells.items():
        for half, unit in enumerate(("rounds", "averages")):
            axis = axes[WORKERS.index(m)][2 * ROWS.index(rows) + half]
            for (name, curve), color in zip(cell.items(), ("C0", "C1", "C2"), strict=True):
                xs = range(len(curve.gaps)) if unit == "rounds" else curve.averages
                axis.semilogy(xs, np.clip(curve.gaps, 1e-15, None), color, marker=".", label=name)
            axis.axhline(MARK, color="0.7", linewidth=0.8)
            axis.set_xlim(0, 12)
            axis.set_ylim(1e-12, 2)
            axis.set_title(f"N {rows:,}, m {m}", fontsize=9)
            axis.set_xlabel(unit, fontsize=8)
    axes[0][0].set_ylabel("(f - f*) / (f0 - f*)")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    print(path)


# -- networks ----------------------------------------------------------------------------------------------------------
def network(name: str, shape: tuple[int, ...], rate: float) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    body = [layers.Conv2D(6, 5, padding="same", activation="relu"), layers.MaxPooling2D()]
    if name == "lenet5":
        body += [layers.Conv2D(16, 5, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        body += [layers.Dense(120, "relu"), layers.Dense(84, "relu")]
    else:  # three layers with weights
        body += [layers.Flatten(), layers.Dense(120, "relu")]
    model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


def images(name: str) -> Any:
    import keras

    (x, y), (tx, ty) = getattr(keras.datasets, name).load_data()
    x, tx = (a.reshape(len(a), *a.shape[1:3], -1).astype("float32") / 255 for a in (x, tx))
    return (x, y.ravel().astype("int32")), (tx, ty.ravel().astype("int32"))


def networks(args: argparse.Namespace) -> int:
    (x, y), (tx, ty) = images(args.data)
    for size in args.np:
        began = time.monotonic()
        curve = accuracies(args, size, x, y, tx, ty)
        paper = PAPER.get((args.data, args.net, size))
        print(
            f"{args.data} {args.net} {args.rule} -np {size}: test accuracy by round "
            f"{' '.join(f'{a:.4f}' for a in curve)}; best {max(curve):.4f}"
            f"{f', paper {paper}' if paper else ''}; rounds to 98 %: {first(curve, 0.98)} "
            f"({time.monotonic() - began:.0f} s)",
            flush=True,
        )
    return 0


def alone(args: argparse.Namespace) -> int:
    """Batches, that is averages of allreduce, until 98 %: allreduce trains as one machine does."""
    import keras

    (x, y), (tx, ty) = images(args.data)
    model, every, curve = network(args.net, x.shape[1:], args.rate), 25, []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch % every == every - 1:
                curve.append(accuracy(self.model, tx, ty))
                if curve[-1] >= 0.98:
                    self.model.stop_training = True

    model.fit(x, y, batch_size=args.batch, epochs=args.rounds, verbose=0, callbacks=[Look()])
    print(f"{args.data} {args.net} allreduce: averages to 98 %: {every * len(curve)} ({curve[-1]:.4f})")
    return 0


def first(curve: list[float], mark: float) -> str:
    return str(next((i + 1 for i, a in enumerate(curve) if a >= mark), "not reached"))


def accuracies(args: argparse.Namespace, size: int, x: Any, y: Any, tx: Any, ty: Any) -> list[float]:
    """Test accuracy after every epoch of the rule over `size` ranks."""
    from fdt.keras import flavor_of
    from fdt.trainable import Trainable
    from hfdt.session import Session, patches

    models = [network(args.net, x.shape[1:], args.rate) for _ in range(size)]
    flavor = flavor_of(models[0])
    with patches(flavor.name), opened(flavor, models, args, x, y) as source:

        def rank(comm: Any) -> list[float]:
            model = models[comm.rank]
            with contextlib.closing(Session(Trainable(flavor, model), comm, {"rule": args.rule})) as session:
                session.prepare(source(), None)
                own, found = source(), []
                for epoch in range(args.rounds):
                    session.train(own, epoch, lambda step, logs: True)
                    found.append(accuracy(model, tx, ty) if comm.rank == 0 else 0.0)
                return found

        return on_ranks(size, rank, wait_s=3600.0)[0]


@contextlib.contextmanager
def opened(flavor: Any, models: list[Any], args: argparse.Namespace, x: Any, y: Any) -> Iterator[Callable[[], Any]]:
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from fdt.data import open_source
    from fdt.job import FitArguments

    with contextlib.closing(LocalBlobs.create()) as blobs:
        held = capture_data(flavor.name, blobs, x, y, batch_size=args.batch)
        for model in models:
            if not flavor.built(model):
                flavor.build(model, held.spec)
        fit = FitArguments(batch_size=args.batch, epochs=args.rounds)
        yield lambda: open_source(held.train, fit, blobs, 7, training=True, flavor=flavor.name)


def accuracy(model: Any, x: Any, y: Any) -> float:
    right = [
        np.argmax(model(x[i : i + 1000], training=False), axis=1) == y[i : i + 1000] for i in range(0, len(x), 1000)
    ]
    return float(np.mean(np.concatenate(right)))


if __name__ == "__main__":
    given = arguments()
    sys.exit({"ridge": ridge, "networks": networks, "allreduce": alone}[given.what](given))
