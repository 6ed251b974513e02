"""C4, C5: a parameter server beside all-reduce, both synchronous; lines of a script that must change."""

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from harness import SCRIPTS, median, spread

from benchmarks.papers import clusters
from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

STEP_S = 0.05
BITS_PER_S = 1e9
ROUNDS = 5
SIZES = {"CNN, 0.23 MB": 228_000, "MLP, 7.6 MB": 7_600_000, "ResNet-50, 102 MB": 102_000_000}
SIDES = {"parameter server": "nfdt", "all-reduce": "hfdt"}
WORDS = 7_200  # of the ring's vector, which 1 to 16 divide; links are slowed alike: times stay
CLUSTER = "step: {step} s\nlink: {{bandwidth: {link} bit/s, latency: 0.1 ms}}\nnodes:\n  - {{name: node, count: {n}}}\n"
TURNS = 3  # of the real runs: the sides alternate
REAL = ["--rows=6400", "--epochs=3", "--batch=64"]


def runs(quick: bool) -> Iterator[Run]:
    for size, nbytes in SIZES.items():
        for n in (2, 16) if quick else (2, 4, 8, 16):
            for side in SIDES:
                settings = {"kind": "simulated", "net": size, "side": side, "n": n}
                yield Run(settings, lambda s=side, b=nbytes, n=n: simulated(s, b, n))
    for turn, n, side in itertools.product(range(0 if quick else TURNS), (2, 4, 8, 16), SIDES):
        settings = {"kind": "real", "net": "keras_fit.py", "side": side, "n": n, "turn": turn}
        yield Run(settings, lambda s=side, n=n: real(s, n))


def simulated(side: str, nbytes: int, n: int) -> Mapping[str, Any]:
    """Return the seconds of one synchronous step: a batch on every node, then the exchange."""
    if side == "parameter server":
        text = CLUSTER.format(step=STEP_S, link=BITS_PER_S, n=n)
        return {"step_s": clusters.timed(text, "ssgd", ROUNDS * n, 0, nbytes).now_s / ROUNDS}
    return {"step_s": ring_s(nbytes, n)}


def ring_s(nbytes: int, n: int) -> float:
    """Return the same of HFDT's ring, on its simulated clock."""
    from hfdt.collectives.simulated import SimulatedWorld, on_simulated

    slower = nbytes / (4 * WORDS)
    world = SimulatedWorld(clusters.described(CLUSTER.format(step=STEP_S, link=BITS_PER_S / slower, n=n)))
    vector = np.zeros(WORDS, np.float32)

    def rank(comm: Any) -> float:
        for _ in range(ROUNDS):
            comm.work(1)
            comm.sum([vector], "ring")
        end: float = comm.now_s
        return end

    return max(on_simulated(world, rank)) / ROUNDS


def real(side: str, n: int) -> Mapping[str, Any]:
    """Return samples/s of the fastest epoch of an unmodified script on this machine: both sides have global batches."""
    import harness

    options = ["--sync"] if side == "parameter server" else ["--batch", "per-worker"]
    found = harness.run([*harness.engine(SIDES[side], n, *options), *REAL], timeout_s=1500)
    return {"samples_per_s": found.fastest, "wall_s": found.wall_s}


def expected(nbytes: int, n: int) -> Mapping[str, float]:
    """Return the seconds of a step by bandwidth alone: 2 n G bytes cross the server's link, 2 (n - 1)/n G a node's."""
    second = 8 * nbytes / BITS_PER_S
    return {"parameter server": STEP_S + 2 * n * second, "all-reduce": STEP_S + 2 * (n - 1) / n * second}


def draw(results: Results, figure: Any) -> None:
    found = where(results, kind="simulated")
    for axis, net in zip(figure.subplots(1, len(SIZES)), SIZES, strict=True):
        for color, side in enumerate(SIDES):
            line = where(found, net=net, side=side)
            n = [r.settings["n"] for r in line]
            axis.plot(n, [r.figures["step_s"] for r in line], f"C{color}o-", label=side)
            bound = [expected(SIZES[net], count)[side] for count in n]
            axis.plot(n, bound, f"C{color}--", label=f"{side}, by bytes over bandwidth")
        axis.set(title=net, xlabel="nodes", ylabel="seconds of a step", ylim=(0, None))
        axis.set_xticks([2, 4, 8, 16])
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8)


def measured(results: Results) -> str:
    cells = []
    for net in values(where(results, kind="simulated"), "net"):
        for n in (2, 16):
            pair = [where(results, kind="simulated", net=net, side=side, n=n) for side in SIDES]
            if all(pair):
                cells.append(f"{net} at {n}: {pair[0][0].figures['step_s'] / pair[1][0].figures['step_s']:.2f}")
    simulated = f"Time of a step under the parameter server over that of all-reduce, simulated: {', '.join(cells)}."
    counts = values(where(results, kind="real"), "n")
    if not counts:
        return simulated
    speeds = (f"{rate(results, 'parameter server', n) / rate(results, 'all-reduce', n):.2f} at {n}" for n in counts)
    return f"{simulated} Its samples/s over those of all-reduce, real, processes on two cores: {', '.join(speeds)}."


def rate(results: Results, side: str, n: int) -> float:
    return median(real_figures(results, side, n, "samples_per_s"))


def real_figures(results: Results, side: str, n: int, figure: str) -> list[float]:
    return [r.figures[figure] for r in where(results, kind="real", side=side, n=n)]


def tables(results: Results) -> Iterator[Table]:
    nodes = values(where(results, kind="simulated"), "n")
    rows = []
    for net in SIZES:
        for side in SIDES:
            found = {r.settings["n"]: r.figures["step_s"] for r in where(results, net=net, side=side)}
            rows.append([net, side, *(f"{1e3 * found.get(n, math.nan):.0f}" for n in nodes)])
    yield Table("Milliseconds of a step, simulated", ["weights", "exchange", *(f"{n} nodes" for n in nodes)], rows)
    rows = [
        [
            str(n),
            side,
            *(spread(real_figures(results, side, n, key), ".0f") for key in ("samples_per_s", "wall_s")),
        ]
        for n in values(where(results, kind="real"), "n")
        for side in SIDES
    ]
    if rows:
        title = f"Real, one calm machine of two cores: fastest epochs, median of {TURNS} turns (least .. most)"
        yield Table(title, ["processes", "exchange", "samples/s", "seconds of the command"], rows)


# -- C5 ------------------------------------------------------------------------------------------------------------
SCRIPT = "keras_fit.py"
BY_HAND = {
    "NFDT, HFDT": SCRIPT,
    "Horovod by hand": "horovod_loop.py",
    "tf.distribute, MultiWorkerMirroredStrategy": "mirrored_loop.py",
    "tf.distribute, ParameterServerStrategy": "server_loop.py",
}


def line_runs(quick: bool) -> Iterator[Run]:
    for system, script in BY_HAND.items():
        yield Run({"system": system, "script": script}, lambda script=script: changed_lines(script))


def changed_lines(script: str) -> Mapping[str, int]:
    """Return how many lines of keras_fit.py are absent from a script, and how many lines that has more."""
    before, after = ((SCRIPTS / name).read_text().splitlines() for name in (SCRIPT, script))
    changes = [line[0] for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    return {"removed": changes.count("-"), "added": changes.count("+")}


def draw_lines(results: Results, figure: Any) -> None:
    axis = figure.subplots()
    names = [str(r.settings["system"]) for r in results]
    axis.barh(names, [r.figures["added"] for r in results], 0.4, label="added or written anew")
    axis.barh(np.arange(len(names)) + 0.4, [r.figures["removed"] for r in results], 0.4, label="removed")
    axis.set(xlabel=f"lines that differ from {SCRIPT}")
    axis.invert_yaxis()
    axis.legend()


def lines_measured(results: Results) -> str:
    cells = (f"{r.settings['system']} {r.figures['added']} added, {r.figures['removed']} removed" for r in results)
    lines = len((SCRIPTS / SCRIPT).read_text().splitlines())
    return f"Lines of benchmarks/scripts/{SCRIPT} ({lines}): {'; '.join(cells)}."


EXPERIMENTS = [
    Experiment(
        "C4",
        "synchronous: a parameter server beside all-reduce",
        "Exchanges through servers are inefficient, above all synchronously; no number.",
        "Simulated: a batch of 50 ms on each node, every link 1 Gbit/s and 0.1 ms, also the server's; ssgd of "
        "`nfdt simulate`, HFDT's ring; no overlap of computation and exchange. A server whose link is n times as wide "
        "would be even. Real: the unmodified benchmarks/scripts/keras_fit.py, three turns on a calm machine of two "
        "cores that holds all processes: no link is narrow, and the parameter server is faster. A ring of n ranks "
        "sends 2 (n - 1) messages in turn, and each may wait until the scheduler runs the next rank; workers wait for "
        "the server alone. That this is the cause was not measured: the claim is about links, and has them in the "
        "simulation.",
        runs,
        measured,
        draw,
        tables,
    ),
    Experiment(
        "C5",
        "lines of a single-machine script that must change",
        "Single-machine TensorFlow code must be rewritten to be distributed; with NFDT and HFDT it is the client as it "
        "is. No number.",
        "The peers' scripts are the hand-written ones of benchmarks/scripts, which train the same net.",
        line_runs,
        lines_measured,
        draw_lines,
    ),
]
