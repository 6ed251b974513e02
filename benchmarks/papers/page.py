"""The results page of the source documents: a row, a picture and tables for each experiment."""

from collections.abc import Mapping
from pathlib import Path

import harness

from benchmarks.papers import cluster_files
from benchmarks.papers.experiment import Experiment, Results, Table

PAGE = harness.ROOT / "docs" / "results" / "papers.md"
PICTURES = harness.ROOT / "docs" / "figures" / "papers"
SOURCES = {
    "A": "a parameter server with a control end",
    "B": "grouped synchronization",
    "C": "NFDT, HFDT and DDC-ASGD",
    "D": "DANE for networks",
    "E": "coded synchronous SGD (CSSGD)",
}
HEAD = """# The source documents, measured

<!-- Written by `make papers ARGS="--budget-s 0 --page"` from benchmarks/results/papers. Do not edit. -->

Every experiment of the five source documents. `make papers` runs them, `make papers ARGS="A1"` one of them. Times are
those of the simulated clock where nothing else is said. No rate and no option was chosen on test rows, but for three
bounds and baselines, in their favor: the rate of ASGD for E's CNN, and one machine's best epoch in D6 and D7.
"""


def write(found: Mapping[str, Results], known: Mapping[str, Experiment]) -> None:
    """Write the page and the pictures of all experiments that have results."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for letter, source in SOURCES.items():
        named = [e for name, e in known.items() if name.startswith(letter)]
        parts += [f"## {letter}: {source}\n", *(section(e, found[e.name]) for e in named)]
    PAGE.write_text("\n".join(parts).rstrip() + "\n")
    harness.console.print(str(PAGE))


def section(experiment: Experiment, results: Results) -> str:
    """Return the part of the page about one experiment."""
    head = f"### {experiment.name}: {experiment.title}\n"
    if not results:
        return f"{head}\nNot run yet. The source says: {experiment.says}\n"
    runs = sum(1 for _ in experiment.runs(False))
    left = f"{runs - len(results):,} of {runs:,} runs are still to do, so means are of fewer. "
    picture(experiment, results, PICTURES / f"{experiment.name}.svg")
    row = Table("", ("", ""), [
        ("source says", experiment.says),
        ("measured", left * (len(results) < runs) + experiment.measured(results)),
        ("why they differ", experiment.differs),
    ])  # fmt: skip
    shown = f"![{experiment.title}](../figures/papers/{experiment.name}.svg)\n"
    tables = [f"{t.title}:\n\n{markdown(t)}" for t in experiment.tables(results)]
    files = [f"{which}:\n\n```yaml\n{text.strip()}\n```\n" for which, text in cluster_files.of(experiment.name)]
    if files:
        files = ['<details markdown="1"><summary>Cluster files</summary>\n', *files, "</details>\n"]
    return "\n".join([head, markdown(row), shown, *tables, *files])


def markdown(table: Table) -> str:
    lines = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def picture(experiment: Experiment, results: Results, path: Path) -> None:
    """Draw an experiment's picture. The file has no date, so that equal results give equal files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    if not results:
        return
    matplotlib.rcParams.update(
        {"svg.hashsalt": experiment.name, "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
    )
    figure = Figure(figsize=(9, 4), layout="constrained")
    experiment.draw(results, figure)
    figure.savefig(path, metadata={"Date": None})
