"""D1: the time of DANE on ridge regression by the number of machines (figure 2), and its rounds beside two others'."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.clusters import described
from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where
from benchmarks.papers.ridge_processes import in_processes

ROWS, MACHINES, ROUNDS = (6_000, 10_000, 14_000, 18_000), (1, 2, 4, 8), 12
MARK = 1e-6  # of f - f* at the start
RHOS = tuple(np.geomspace(0.03, 10, 16))
MATRIX, VECTOR = 20e9, 2e9  # operations a second of a core, in products of matrices, and with a vector
LINK_BPS, LATENCY_S, SHAPE, SUM_BPS = 1e9 / 8, 1e-4, 100.0, 2e9
DANE, ADMM, DESCENT, PROCESSES = "dane", "admm, best rho", "gradient descent, allreduce", "dane, real processes"


def runs(quick: bool) -> Iterator[Run]:
    for rows in ROWS[:1] if quick else ROWS:
        for machines in (1, 2) if quick else MACHINES:
            for method in (DANE, ADMM, DESCENT, PROCESSES):
                settings = {"rows": rows, "machines": machines, "method": method, "rhos": 2 if quick else len(RHOS)}
                named = settings | ({"threads": 1} if method == PROCESSES else {})  # of a process
                yield Run(named, partial(measure, **settings))


def measure(rows: int, machines: int, method: str, rhos: int) -> Mapping[str, Any]:
    if method == DESCENT:
        return descent(rows, machines)
    if method == PROCESSES:
        return in_processes(rows, machines, simulated("dane(solver='cg')", rows, machines)["rounds"])
    if method == DANE:
        return simulated("dane(solver='cg')", rows, machines)
    tried = [{**simulated(f"admm(rho={rho})", rows, machines), "rho": rho} for rho in RHOS[:: len(RHOS) // rhos]]
    return min(tried, key=lambda found: (found["rounds"] or ROUNDS + 1, found["gaps"][-1]))


# -- the simulated clock -----------------------------------------------------------------------------------------------
class Timed:
    """A part of the problem whose operations take a machine's time. The Gram matrix and its factor are made once."""

    def __init__(self, part: Any, comm: Any) -> None:
        from benchmarks.papers.quadratic import WIDTH

        self._part, self._comm, self._width, self._factored = part, comm, WIDTH, -1.0
        comm.work(2 * part.rows * WIDTH**2 / MATRIX)

    @property
    def w0(self) -> Any:
        return self._part.w0

    @w0.setter
    def w0(self, w: Any) -> None:
        self._part.w0 = w

    def gradient(self) -> Any:
        self._comm.work(4 * self._part.rows * self._width / VECTOR)
        return self._part.gradient()

    def curvature(self, direction: Any) -> Any:
        self._comm.work(4 * self._part.rows * self._width / VECTOR)
        return self._part.curvature(direction)

    def minimum(self, task: Any) -> Any:
        if task.mu != self._factored:
            self._comm.work(self._width**3 / 3 / MATRIX)
            self._factored = task.mu
        self._comm.work(2 * self._width**2 / VECTOR)
        return self._part.minimum(task)


def cluster_file(machines: int, server: bool) -> str:
    """Return the file of equal machines whose steps of a second vary, and a server, on a star of links."""
    return (
        f"""\
step: 1 s
link: {{bandwidth: {8e-9 * LINK_BPS:g} Gbit/s, latency: {1e3 * LATENCY_S:g} ms}}
nodes:
  - {{name: machine, count: {machines}, speed: {{distribution: gamma, mean: 1, shape: {SHAPE:g}}}}}
"""
        + server * "  - {name: adder, count: 1}\n"
    )


def simulated(text: str, rows: int, machines: int) -> dict[str, Any]:
    from benchmarks.papers.quadratic import WIDTH, Group, in_rounds, problem
    from benchmarks.papers.server_star import on_star

    (whole,), parts = problem(rows, 1), problem(rows, machines)
    gaps, averages, ends, mus = [1.0], [0], [0.0], [0.0]

    def machine(comm: Any) -> None:
        group = Group(comm.size, comm.add)

        def after(w: Any, mu: float) -> None:
            if comm.rank == 0:
                gaps.append(whole.gap(w))
                averages.append(group.averages)
                ends.append(comm.now_s)
                mus.append(mu)

        in_rounds(text, Timed(parts[comm.rank], comm), group, ROUNDS, np.zeros(WIDTH), after)

    on_star(described(cluster_file(machines, server=True)), machine, SUM_BPS)
    return {**to_mark(gaps, averages, ends), "mu": mus[-1]}


def to_mark(gaps: list[float], averages: list[int], ends: list[float]) -> dict[str, Any]:
    """Return the figures of a curve: rounds, averages and seconds until MARK, None where it is not reached."""
    rounds = next((i for i, gap in enumerate(gaps) if gap < MARK), None)
    reached = {} if rounds is None else {"averages": averages[rounds], "seconds": ends[rounds]}
    return {"rounds": rounds, "averages": None, "seconds": None, "gaps": gaps, **reached}


def descent(rows: int, machines: int) -> dict[str, Any]:
    """Gradient descent at its best fixed step, 2 / (largest + smallest eigenvalue), over a ring."""
    from benchmarks.papers.quadratic import WIDTH, problem
    from hfdt.collectives.simulated import SimulatedWorld, on_simulated

    (whole,) = problem(rows, 1)
    w, gaps, world = np.zeros(WIDTH), [1.0], SimulatedWorld(described(cluster_file(machines, server=False)))
    bend = whole.spectrum[0]
    for _ in range(ROUNDS):
        w = w - 2 / (bend[0] + bend[-1]) * (whole.hessian @ w - whole.b)
        gaps.append(whole.gap(w))

    def machine(comm: Any) -> list[float]:
        ends = [0.0]
        for _ in range(ROUNDS):
            comm.work(4 * rows / machines * WIDTH / VECTOR)
            comm.sum([np.zeros(WIDTH)], "gradient")
            ends.append(comm.now_s)
        return ends

    return to_mark(gaps, list(range(ROUNDS + 1)), on_simulated(world, machine)[0])


# -- the picture and the row -------------------------------------------------------------------------------------------
def points(results: Results, rows: int, method: str, figure: str = "seconds") -> tuple[list[Any], list[Any]]:
    found = [r for r in where(results, rows=rows, method=method) if r.figures[figure] is not None]
    return [r.settings["machines"] for r in found], [r.figures[figure] for r in found]


def draw(results: Results, figure: Any) -> None:
    sizes = values(results, "rows")
    for axis, rows in zip(figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0], sizes, strict=True):
        for color, method in enumerate((DANE, ADMM, DESCENT)):
            axis.loglog(*points(results, rows, method), f"C{color}o-", label=f"{method}, simulated")
        axis.loglog(*points(results, rows, PROCESSES), "C3s--", label="dane, real processes, wall")
        axis.loglog(*points(results, rows, PROCESSES, "critical_s"), "C4s--", label="the same, CPU of the slowest")
        axis.set(title=f"N = {rows:,}", xlabel="machines (processes)", xticks=MACHINES)
        axis.xaxis.set(major_formatter="{x:g}", minor_formatter="")
        axis.yaxis.set(major_formatter="{x:g}")
    figure.axes[0].set_ylabel(f"seconds until f - f* is {MARK:g} of its start")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)


def measured(results: Results) -> str:
    said = []
    for method, name, figure in (
        (DANE, "The time of DANE", "seconds"),
        (PROCESSES, "the CPU time of the slowest real process", "critical_s"),
    ):
        ratios = []
        for rows in values(results, "rows"):
            times = dict(zip(*points(results, rows, method, figure), strict=True))
            if {1, 8} <= set(times):
                ratios.append(f"{times[8] / times[1]:.2f} (N = {rows:,})")
        said += [f"{name} on 8 machines, over that on 1: {', '.join(ratios)}"] if ratios else []
    most = max((r.figures["rounds"] for r in where(results, method=DANE) if r.figures["rounds"]), default=0)
    said.append(f"DANE needs {most} rounds at most, no more than the others {ahead(results, 'rounds')}")
    said.append(f"it takes no more seconds than they {ahead(results, 'seconds')}")
    return f"{'; '.join(said)}."


def ahead(results: Results, figure: str) -> str:
    """Return in how many problems DANE needs no more of `figure` than ADMM and than gradient descent."""
    counted = won = 0
    for one in where(results, method=DANE):
        key = {"rows": one.settings["rows"], "machines": one.settings["machines"]}
        peers = [r.figures[figure] for m in (ADMM, DESCENT) for r in where(results, method=m, **key)]
        counted += 1
        own = one.figures[figure]
        won += own is not None and all(peer is None or own <= peer for peer in peers)
    return f"in {won} of {counted} problems"


def tables(results: Results) -> Iterator[Table]:
    rows = []
    for size in values(results, "rows"):
        for machines in values(results, "machines"):
            found = {r.settings["method"]: r for r in where(results, rows=size, machines=machines)}
            rows.append([f"{size:,}", str(machines), *(cell(found.get(m)) for m in (DANE, ADMM, DESCENT, PROCESSES))])
    heads = ["N", "machines", DANE, ADMM, DESCENT, "dane, real processes: wall, CPU of the slowest"]
    yield Table("Seconds; rounds (averages) until then", heads, rows)


def cell(found: Any) -> str:
    if found is None:
        return "-"
    figures = found.figures
    if found.settings["method"] == PROCESSES:
        return f"{figures['seconds']:.3g}, {figures['critical_s']:.3g}"
    if figures["rounds"] is None:
        return f"more than {ROUNDS} rounds"
    chosen = next((name for name in ("rho", "mu") if name in figures), None)
    extra = f", {chosen} {figures[chosen]:.2g}" if chosen else ""
    return f"{figures['seconds']:.3g}; {figures['rounds']} ({figures['averages']}){extra}"


EXPERIMENTS = [
    Experiment(
        "D1",
        "time of DANE on ridge regression by the number of machines",
        "Time falls clearly with the machines but less than in proportion: some processes are slower, and the server "
        "is serial. The unit is lost.",
        "Ours: time until f - f* is 1e-6 of its start; a core makes 20e9 operations a second in products of matrices "
        "and 2e9 with vectors, steps vary by Gamma(100), links have 1 Gbit/s and 0.1 ms, the server adds at 2 GB/s. "
        "The Gram matrix falls as 1/m, its factor, the server and latency do not. One machine needs one round, several "
        "need three to five. Gradient descent needs no Gram matrix, so it is far ahead on these well conditioned "
        "problems. Real processes have one thread each and share two hyperthreads of one core of a calm machine, so "
        "beyond two their wall time says little; the CPU time of the slowest is what a core for each would take.",
        runs,
        measured,
        draw,
        tables,
    )
]
