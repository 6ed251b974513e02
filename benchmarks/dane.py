"""DANE on ridge regression with exact minimisers, against ADMM at its best rho and gradient descent at its best step.

f - f* by rounds and by averages over the 16 problems of DANE's paper: a table and a plot. Half a minute.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from hfdt.collectives.inprocess import on_ranks

ROWS, WORKERS, WIDTH, PENALTY = (6_000, 10_000, 14_000, 18_000), (1, 2, 4, 8), 500, 0.005
MARK = 1e-6  # of f - f* at the start
RHOS = np.geomspace(0.03, 10, 16)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", default="dane.png")
    parser.add_argument("--rounds", type=int, default=12)
    return parser.parse_args()


# -- one problem ------------------------------------------------------------------------------------------------------
@dataclass
class Quadratic:
    """The objective O_i(w) = |X w - y|^2 / n + PENALTY |w|^2 (a LocalObjective), with its exact minimiser."""

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
    """f - f*, relative to its start, after each round, with the number of averages until then."""

    gaps: list[float]
    averages: list[int]
    note: str = ""

    def rounds(self) -> int | None:
        return next((i for i, gap in enumerate(self.gaps) if gap < MARK), None)


def ruled(text: str, shards: list[Quadratic], whole: Quadratic, rounds: int) -> Curve:
    import tensorflow as tf

    from hfdt import algorithm_registry
    from hfdt.worker.rounds import RoundGroup

    rule = algorithm_registry.make(text)

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
    """ADMM at the best of RHOS for this very problem, an advantage over DANE, whose mu is not tuned."""
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
    return int(missed > 0)


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
            axis.set(xlim=(0, 12), xticks=range(0, 13, 2))
            axis.set_ylim(1e-12, 2)
            axis.set_title(f"N {rows:,}, m {m}", fontsize=9)
            axis.set_xlabel(unit, fontsize=8)
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("(f - f*) / (f0 - f*)")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    print(path)


if __name__ == "__main__":
    sys.exit(ridge(arguments()))
