"""The pages of single algorithms, made when the site is built: from their files, algorithms.yaml and kept results."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
HEADS = ("cluster", "task", "options", "seconds to the mark", "over one machine's", "MB to it", "accuracy", "seeds")
SEEDS = 3
RULES_HEADS = ("workers", "accuracy, Fashion-MNIST, 2 epochs", "seeds")


def pages() -> Iterator[tuple[str, str]]:
    """Yield (path, text) of each algorithm's page."""
    uses = yaml.safe_load((ROOT / "docs/algorithms.yaml").read_text())
    for engine in ("hfdt", "nfdt"):
        registry = importlib.import_module(f"{engine}.algorithms")
        for name in registry.names():
            yield f"algorithms/{name}.md", page(engine, name, registry, *uses[name])


def page(engine: str, name: str, registry: Any, use: str, use_not: str) -> str:
    """Return the page of one algorithm."""
    module = importlib.import_module(f"{engine}.algorithms.{name}")
    first, _, rest = (inspect.getdoc(module) or "").partition("\n")
    parameters = ", ".join(f"`{p}`" for p in registry.parameters(name).values())
    return "\n".join(
        [
            f"# {name}\n\n{first}\n\n## Equation and source\n\n```text\n{rest.strip()}\n```\n",
            f"Parameters: {parameters or 'none'}. [Algorithms](../algorithms.md): cost, meaning of an epoch.\n",
            f"## Example\n\n```shell\n{engine} run --algorithm {name} examples/digits.py -np 4\n```\n",
            f"## When to use it\n\n- Use it where: {use}.\n- Do not where: {use_not}.\n",
            "## In the tournament\n",
            *results(engine, name),
        ]
    )


def results(engine: str, name: str) -> Iterator[str]:
    """Yield the lines of an algorithm's rows. Nothing here is typed: benchmarks/results has the data."""
    from tournament_results import HELD_OUT, NAMES, Stored, table_rows
    from tournament_tasks import TASKS

    stored = Stored(ROOT / "benchmarks/results/tournament.jsonl")
    rows = [
        [cluster, task, *_cells(row)]
        for task in TASKS
        for cluster in (*NAMES, *HELD_OUT)
        for row in table_rows(stored, task, cluster)
        if row["engine"] == engine and row["algorithm"].partition("(")[0].split()[0] == name
    ]
    marks = ", ".join(f"{task} {each.mark:.0%}" for task, each in TASKS.items())
    yield f"[How it is measured](../results/tournament.md). Marks: {marks}.\n"
    yield from _table(HEADS, rows) if rows else ["It was not run yet.\n"]
    if by_workers := _rules(name):
        yield "At equal samples on equal workers, by `benchmarks/rules.py`:\n"
        yield from _table(RULES_HEADS, by_workers)


def tournament() -> str:
    """Return the tables of the tournament, one for each task and cluster that was run, and how much was not."""
    from tournament_results import HELD_OUT, HFDT, NAMES, NFDT, RESNET20, Stored, table_rows
    from tournament_tasks import TASKS

    stored, lines = Stored(ROOT / "benchmarks/results/tournament.jsonl"), list[str]()
    cells = (len(TASKS) - 1) * len((*NAMES, *HELD_OUT)) + len(RESNET20)
    whole = cells * len((*HFDT, *NFDT)) * SEEDS
    lines.append(f"**{len(stored.runs)} of {whole} runs are done**; what is not in a table below was not run yet.\n")
    for task in TASKS:
        for cluster in (*NAMES, *HELD_OUT):
            rows = table_rows(stored, task, cluster)
            rows.sort(key=lambda row: (row["seconds"] is None, row["seconds"], -row["accuracy"]))
            if rows:
                lines.append(f"### {task} on {cluster}\n")
                lines += _table(("engine", *HEADS[2:]), [[row["engine"], *_cells(row)] for row in rows])
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    marks = ["not reached", "", ""]
    if row["seconds"] is not None:
        marks = [f"{row['seconds']:.2f}", f"{row['of_alone']:.2f}", f"{row['bytes'] / 1e6:.1f}"]
    return [f"`{row['algorithm']}`", *marks, f"{row['accuracy']:.3f}", str(row["seeds"])]


def _rules(name: str) -> list[list[str]]:
    """Return the rows of rules.py: mean accuracy by workers."""
    import harness

    found: dict[int, list[float]] = {}
    for line in harness.kept(ROOT / "benchmarks/results/rules.jsonl"):
        run = line["run"]
        plain = run["data"] == "fashion_mnist" and not run["held_out"] and run.get("rate", 1.0) == 1.0
        if plain and run["rule"] == name and run["epochs"] == 2:
            found.setdefault(run["workers"], []).append(line["result"]["accuracy"])
    return [[str(n), f"{sum(a) / len(a):.1f}", str(len(a))] for n, a in sorted(found.items())]


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
