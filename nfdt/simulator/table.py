"""Table of `--compare`: several runs side by side."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nfdt.model.staleness import Spread, spread
from nfdt.simulator.outcome import SimulationOutcome

WIDTH = 110  # columns, if the output is not a terminal
HEADS = ("rule", "metric", "final", "simulated_s", "pushes", "staleness_mean", "staleness_median", "staleness_max")


def row(outcome: SimulationOutcome) -> dict[str, str | float]:
    """Return one run's line by column name."""
    taus = spread(outcome.staleness) or Spread(0.0, 0.0, 0.0)
    found = (outcome.rule, outcome.metric, outcome.final, outcome.simulated_s, outcome.total("pushes"), *taus)
    return dict(zip(HEADS, found, strict=True))


def print_table(outcomes: Sequence[SimulationOutcome]) -> None:
    """Print the table of all runs."""
    table = Table()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    for head in ("rule", outcomes[0].metric or "metric", "simulated s", "pushes", "staleness", "median", "largest"):
        table.add_column(head, justify="left" if head == "rule" else "right")
    for outcome in outcomes:
        _, _, final, simulated_s, pushes, mean, median, largest = row(outcome).values()
        table.add_row(
            outcome.rule,
            f"{final:.4f}",
            f"{simulated_s:,.1f}",
            f"{pushes:,.0f}",
            f"{mean:.2f}",
            f"{median:g}",
            f"{largest:g}",
        )
    console.print(table)


def write_table(outcomes: Sequence[SimulationOutcome], directory: Path) -> None:
    """Write compare.json and compare.csv."""
    rows = [row(outcome) for outcome in outcomes]
    (directory / "compare.json").write_text(json.dumps(rows, indent=1))
    with open(directory / "compare.csv", "w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, HEADS)
        table.writeheader()
        table.writerows(rows)
