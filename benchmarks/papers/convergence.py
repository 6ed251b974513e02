"""D6: mean test loss by round of DANE and ADMM on MNIST, and the least one (figure 7)."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.papers.experiment import Experiment, Measured, Results, Run, Table, where

WORKERS, ROUNDS, ROWS = 4, 10, 10_000
CONVEX, NET = "softmax regression", "lenet5"
MODELS = (CONVEX, NET)
TRIED = {
    CONVEX: (
        *("dane(mu=0.03)", "admm(rho=0.03)", "dane(mu=0.1)", "admm(rho=0.1)", "admm(rho=0.01)", "dane(mu=0.01)"),
        *("dane(mu=0.003)", "admm(rho=0.003)", "dane(mu=0.001)", "admm(rho=0.001)"),
        *("admm(rho=0.0003)", "admm(rho=0.0001)"),
    ),
    NET: (
        *("dane(mu=0.0)", "admm(rho=0.01)", "admm(rho=0.1)", "admm(rho=1.0)"),
        *("admm(rho=0.003)", "admm(rho=0.001)", "dane(mu=0.003)", "dane(mu=0.001)"),
    ),
}
LEAST = "least"
LEVELS = {CONVEX: "the least point, exact", NET: "one machine's lowest of 20 epochs, no optimum"}
FAMILIES = ("dane", "admm")
NEAR, CLEARLY = 1.02, 1.5  # times the lower loss; times the fewer rounds


def runs(quick: bool) -> Iterator[Run]:
    """The convex model first, which takes a minute."""
    for model in MODELS[:1] if quick else MODELS:
        algorithms = ("dane(mu=0.01)", "admm(rho=0.03)") if quick else TRIED[model]
        rows = 400 if quick else ROWS if model == CONVEX else 50_000
        for algorithm in (LEAST, *algorithms):
            settings = {"model": model, "algorithm": algorithm, "workers": WORKERS, "rows": rows}
            rounds = 2 if quick else 20 if algorithm == LEAST else ROUNDS
            measure = convex if model == CONVEX else net
            yield Run({**settings, "rounds": rounds}, partial(measure, algorithm, rows, rounds))


# -- softmax regression ------------------------------------------------------------------------------------------------
@cache
def parts(rows: int, count: int) -> tuple[list[Any], Mapping[str, Any]]:
    """Return `count` equal parts of the training rows, and the rows that are looked at."""
    from benchmarks.papers.lenets import rows_of
    from benchmarks.papers.softmax import Softmax

    x, y, looked = rows_of("mnist", rows)
    cut = zip(np.split(x, count), np.split(y, count), strict=True)
    return [Softmax(a, b) for a, b in cut], {name: Softmax(*pair) for name, pair in looked.items()}


def convex(algorithm: str, rows: int, rounds: int) -> Mapping[str, Any]:
    from benchmarks.papers.clusters import described
    from benchmarks.papers.quadratic import Group, in_rounds
    from benchmarks.papers.ridge import SUM_BPS, cluster_file
    from benchmarks.papers.server_star import on_star
    from benchmarks.papers.softmax import least

    if algorithm == LEAST:
        (whole,), looked = parts(rows, 1)
        return losses([least(whole.value, whole.w0, 1e-6, 1000)], looked)
    shards, looked = parts(rows, WORKERS)
    points: list[Any] = []

    def worker(comm: Any) -> None:
        start = np.zeros_like(shards[0].w0)
        after: Callable[[Any, float], None] = lambda w, mu: points.append(w) if comm.rank == 0 else None  # noqa: E731
        in_rounds(algorithm, shards[comm.rank], Group(comm.size, comm.add), rounds, start, after)

    on_star(described(cluster_file(WORKERS, server=True)), worker, SUM_BPS)
    return losses(points, looked)


def losses(points: list[Any], looked: Mapping[str, Any]) -> dict[str, list[float]]:
    return {f"{name}_loss": [round(rows.loss(w), 5) for w in points] for name, rows in looked.items()}


# -- LeNet5 ------------------------------------------------------------------------------------------------------------
def net(algorithm: str, rows: int, rounds: int) -> Mapping[str, Any]:
    from benchmarks.papers.lenets import Training, alone, by_round

    training = Training("mnist", NET, algorithm, WORKERS, rounds, 0, rows)
    return alone(training, 2.0) if algorithm == LEAST else by_round(training)


# -- the picture and the row -------------------------------------------------------------------------------------------
def best(results: Results, model: str, family: str) -> Measured | None:
    """Return the run of a family of algorithms whose last loss on the held-out rows is the least."""
    found = [r for r in where(results, model=model) if str(r.settings["algorithm"]).startswith(family)]
    return min(found, key=lambda r: last(r.figures["held_out_loss"]), default=None)


def last(losses: list[float]) -> float:
    return losses[-1] if np.isfinite(losses[-1]) else float("inf")


def level(results: Results, model: str) -> float | None:
    """Return the test loss of the least point (convex), or the lowest of one machine's epochs, which is no optimum."""
    found = where(results, model=model, algorithm=LEAST)
    return min(found[0].figures["test_loss"]) if found else None


def draw(results: Results, figure: Any) -> None:
    from matplotlib.ticker import LogLocator

    models = [m for m in MODELS if best(results, m, "dane")]
    for axis, model in zip(figure.subplots(1, max(1, len(models)), squeeze=False)[0], models, strict=False):
        chosen = {family: best(results, model, family) for family in FAMILIES}
        for found in where(results, model=model):
            family, curve = str(found.settings["algorithm"]).split("(")[0], found.figures["test_loss"]
            if family == LEAST:
                continue
            color, is_best = "C0" if family == "dane" else "C1", found is chosen[family]
            name = f"{found.settings['algorithm']} (best on held-out rows)" if is_best else ""
            axis.plot(range(1, len(curve) + 1), curve, color, alpha=1.0 if is_best else 0.3, label=name)
        if (lowest := level(results, model)) is not None:
            axis.axhline(lowest, color="k", linestyle=":", label=LEVELS[model])
        axis.set(title=f"MNIST, {model}, {WORKERS} workers", xlabel="round", ylabel="mean test loss", yscale="log")
        axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 3, 4, 5, 7)), major_formatter="{x:g}", minor_formatter="")
        axis.legend(fontsize=7, title="pale: other mu and rho", title_fontsize=7)


def rounds_to(curve: list[float], loss: float) -> int:
    return next(i + 1 for i, seen in enumerate(curve) if seen <= loss)


def compared(results: Results, model: str) -> str:
    """Return in words how many rounds DANE and ADMM need to a loss that both reach, each at its best."""
    found = [best(results, model, family) for family in FAMILIES]
    names = [str(f.settings["algorithm"]) for f in found if f]
    curves = [f.figures["test_loss"] for f in found if f]
    if len(curves) < len(FAMILIES):
        return ""
    mark = NEAR * max(map(min, curves))
    dane, admm = (rounds_to(curve, mark) for curve in curves)
    verdict = "is" if admm >= CLEARLY * dane else "is not"
    ends = ", ".join(f"{name} {curve[-1]:.4f}" for name, curve in zip(names, curves, strict=True))
    return (
        f"{model}: {names[0]} needs {dane} rounds and {names[1]} {admm} to a loss of {mark:.4f}, within 2 % of the "
        f"lowest that both reach, so ADMM's clearly more rounds {verdict} reproduced; after the last round {ends}"
    )


def measured(results: Results) -> str:
    said = [compared(results, model) for model in MODELS]
    for model in MODELS:
        lowest, name = level(results, model), LEVELS[model]
        said += [f"the level of {model}, {name}, is {lowest:.4f}"] if lowest is not None else []
    return "; ".join(filter(None, said)) + "." if any(said) else "Nothing has run to the end yet."


def tables(results: Results) -> Iterator[Table]:
    shown = (1, 2, 3, 5, 10)
    rows = []
    for found in results:
        curve = found.figures["test_loss"]
        cells = [f"{curve[i - 1]:.4f}" if i <= len(curve) else "-" for i in shown]
        name = [str(found.settings["model"]), str(found.settings["algorithm"])]
        if found.settings["algorithm"] == LEAST:
            cells = ["" for _ in shown[1:]] + [f"{min(curve):.4f}"]
        rows.append([*name, *cells])
    yield Table("Mean test loss by round", ["model", "algorithm", *(f"round {i}" for i in shown)], rows)


EXPERIMENTS = [
    Experiment(
        "D6",
        "test loss by round of DANE and ADMM, and a level",
        "DANE converges fast, ADMM needs clearly more rounds; a level line is the least mean loss.",
        "Model, workers, rho and mu are not stated. Ours: softmax regression (convex, penalty 1e-3, 10,000 rows, local "
        "minima by L-BFGS), whose least point is exact, and LeNet5 (50,000 rows, one local epoch a round), whose level "
        "is one machine's lowest of 20 epochs: no optimum, and DANE may fall below it. 4 workers. rho and mu were "
        "chosen by the last loss on held-out rows, of 0.0001 or 0.001 to 0.1 or 1 for ADMM, 0 or 0.001 to 0.1 for "
        "DANE. At mu = rho of 0.03 and more both fall alike. ADMM has one average a round, DANE two.",
        runs,
        measured,
        draw,
        tables,
    )
]
