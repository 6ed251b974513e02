"""Every figure and table of the source documents.

    make papers                                        # all of it: hours. What is stored is not repeated
    make papers ARGS="A1 E5"                           # these
    make papers ARGS=--quick                           # each in few and short runs: minutes, stored nowhere
    make papers ARGS="--budget-s 600"                  # ten minutes of the work; the same command goes on with it
    make papers ARGS="--budget-s 0 --page"             # nothing is run; the page and its pictures from what is stored

Runs are stored in benchmarks/results/papers, a JSON line each. --page writes docs/results/papers.md and its pictures.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the modules of benchmarks/
import harness  # noqa: E402

from benchmarks.papers import page  # noqa: E402
from benchmarks.papers.experiment import Experiment, Results, Store  # noqa: E402
from benchmarks.papers.registry import experiments  # noqa: E402

STORED = harness.ROOT / "benchmarks" / "results" / "papers"


def main() -> int:
    given = arguments()
    known = experiments()
    if unknown := [name for name in given.names if name not in known]:
        sys.exit(f"papers: no experiment is named {', '.join(unknown)}. Known: {', '.join(known)}")
    chosen = [known[name] for name in given.names or known]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) if given.quick else given.out
        found = carry_out(chosen, directory, given.quick, given.budget_s)
        for experiment in chosen:
            show(experiment, found[experiment.name])
            page.picture(experiment, found[experiment.name], Path(scratch) / f"{experiment.name}.svg")
    if given.page:
        page.write({name: results_of(e, given.out) for name, e in known.items()}, known)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="such as A1; without any: all")
    parser.add_argument("--quick", action="store_true", help="few and short runs, which are not stored")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="seconds after which no run begins")
    parser.add_argument("--out", type=Path, default=STORED, help="the directory of the stored runs")
    parser.add_argument("--page", action="store_true", help="write the results page and its pictures")
    given = parser.parse_args()
    if given.quick and given.page:
        parser.error("--page needs the stored runs: leave out --quick")
    return given


def carry_out(chosen: Sequence[Experiment], directory: Path, quick: bool, budget_s: float) -> dict[str, Results]:
    """Run whatever is not stored until the time is over, and return the results by experiment."""
    began, missing = time.monotonic(), 0
    found: dict[str, Results] = {}
    for experiment in chosen:
        store, runs = Store(directory, experiment), list(experiment.runs(quick))
        for run in runs:
            if run in store:
                continue
            if time.monotonic() - began > budget_s:
                missing += 1
                continue
            said = ", ".join(f"{key} {value}" for key, value in run.settings.items())
            harness.console.print(f"  {experiment.name}: {said}", style="dim")
            store.add(run)
        found[experiment.name] = store.results(runs)
    if missing:
        harness.console.print(f"{missing} runs are still to do: the same command goes on with them")
    return found


def results_of(experiment: Experiment, directory: Path) -> Results:
    return Store(directory, experiment).results(experiment.runs(False))


def show(experiment: Experiment, results: Results) -> None:
    """Print the tables of an experiment, and its row."""
    harness.console.print(f"\n{experiment.name}: {experiment.title}", style="bold")
    if not results:
        harness.console.print("not run yet")
        return
    for table in experiment.tables(results):
        harness.table(table.title, table.headings, table.rows)
    harness.console.print(f"source says: {experiment.says}\nmeasured:    {experiment.measured(results)}")


if __name__ == "__main__":
    harness.conclude(main)
