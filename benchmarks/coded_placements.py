"""Coded SGD by placement: tables and pictures of docs/results/coded.md, from the stored runs of `make papers ARGS=E6`.

    python benchmarks/coded_placements.py                        # the tables; nothing is trained or simulated
    python benchmarks/coded_placements.py --png docs/figures     # the pictures, too

A task has one training of synchronous SGD, whose steps to the mark are multiplied by the simulated time of a step.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the package `benchmarks`
import harness  # noqa: E402

from benchmarks.papers.coded_runs import (  # noqa: E402
    ASGD,
    CELLS,
    CODED,
    CYCLIC,
    DIVIDED,
    GROUPS,
    MULTICAST,
    RING,
    Cell,
    others,
    redundancies,
    seconds_to_mark,
)
from benchmarks.papers.experiment import Results, Store  # noqa: E402
from benchmarks.papers.registry import experiments  # noqa: E402

METHODS = (ASGD, RING, MULTICAST, CODED, GROUPS, CYCLIC)
NAMES = {CODED: "coded, paper"}
HEADS = ("nodes", *(NAMES.get(method, method) for method in METHODS), "best coded less than SSGD, asgd")
Best = tuple[float, int]  # seconds to the mark, redundancy


def best(results: Results, cell: Cell, nodes: int, method: str) -> Best | None:
    """Return a method's time at its best redundancy. 1 in the paper's placement is SSGD multicast."""
    tried = {
        CODED: [(MULTICAST, 1), *((CODED, r) for r in redundancies(nodes))],
        GROUPS: [(m, r) for m, r in others(nodes) if m == GROUPS],
        CYCLIC: [(m, r) for m, r in others(nodes) if m == CYCLIC],
    }.get(method, [(method, 1)])
    found = [(seconds_to_mark(results, cell, nodes, m, r), r) for m, r in tried]
    return min(((seconds, r) for seconds, r in found if seconds is not None), default=None)


def row(results: Results, cell: Cell, nodes: int) -> list[str]:
    """Return the cells of one number of nodes."""
    found = {method: best(results, cell, nodes, method) for method in METHODS}
    coded = min(found[method] for method in (CODED, GROUPS, CYCLIC) if found[method])[0]
    saved = [100 * (1 - coded / found[method][0]) for method in (MULTICAST, ASGD)]
    cells = [told(found[method], method) for method in METHODS]
    return [str(nodes), *cells, ", ".join(f"{share:.0f} %" for share in saved)]


def told(value: Best | None, method: str) -> str:
    if value is None:
        return "-"
    return f"{value[0]:.3g}" + f" ({value[1]})" * (method in (CODED, GROUPS, CYCLIC))


def draw(results: Results, cells: Sequence[Cell], file: Path) -> None:
    """Draw the seconds by nodes, a panel for each network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(cells) + 2, 3.6), layout="constrained")
    for axis, cell in zip(figure.subplots(1, len(cells), squeeze=False)[0], cells, strict=True):
        for color, method in enumerate(METHODS):
            points = [(n, found[0]) for n in cell.nodes if (found := best(results, cell, n, method))]
            style = "o-" if method in (CODED, GROUPS, CYCLIC) else "o--"
            x, y = zip(*points, strict=True)
            axis.semilogy(x, y, f"C{color}{style}", markersize=3, label=NAMES.get(method, method))
        axis.set(xlabel="nodes", xticks=cell.nodes, ylabel=f"simulated seconds to {cell.mark:.0%}", title=cell.network)
        axis.grid(visible=True, which="both", alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(file, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, help="a directory for coded_dnn.png and coded_cnn.png")
    given = parser.parse_args()
    experiment = experiments()["E6"]
    directory = harness.ROOT / "benchmarks" / "results" / "papers"
    results = Store(directory, experiment).results(experiment.runs(False))
    cells = [cell for cell in CELLS if cell.load == DIVIDED]
    for cell in cells:
        harness.table(f"{cell}: seconds (redundancy)", HEADS, [row(results, cell, n) for n in cell.nodes])
    for task in ("dnn", "cnn") if given.png else ():
        draw(results, [cell for cell in cells if cell.task == task], given.png / f"coded_{task}.png")
    return 0


if __name__ == "__main__":
    harness.conclude(main)
