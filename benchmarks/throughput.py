"""samples/s of one workload on several sides: the arguments, the alternating runs, one table."""

import argparse
from collections.abc import Callable, Mapping, Sequence

import harness
from harness import Run


def parser(description: str | None, epochs: int) -> argparse.ArgumentParser:
    """Return a parser with `-np`, `--repeats`, and the arguments of scripts/workload.py."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="57 k weights, or 1.9 M")
    parser.add_argument("--rows", type=int, default=25_600)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch", type=int, default=64, help="the script's own: of all workers under HFDT")
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def words(args: argparse.Namespace, *more: str) -> list[str]:
    """Return the script's command line; `more` names arguments that only some scripts take."""
    return [f"--{name}={getattr(args, name)}" for name in ("model", "rows", "epochs", "batch", *more)]


COLUMNS: dict[str, tuple[Callable[[Run], float], str]] = {  # heading -> the figure of a run, and its form
    "whole command": (lambda run: run.wall_s, "{:.1f} s"),
    "first epoch": (lambda run: run.said["epoch_ends"][0] - run.said["fit"], "{:.1f} s"),
    "CPU, whole command": (lambda run: run.cpu_s, "{:.1f} s"),
    "accuracy": (lambda run: run.said["accuracy"], "{:.3f}"),
    "loss": (lambda run: run.said["loss"], "{:.4f}"),
}


def compare(sides: Mapping[str, Callable[[], Run]], args: argparse.Namespace) -> list[list[float]]:
    """Return samples/s of each side, by turn: from the end of the first epoch to the end of the last."""
    title = f"{args.model}, {args.rows} rows, batch {args.batch}, {args.epochs} epochs"
    return rates(tabulate(sides, args.repeats, title, ("whole command", "accuracy")))


def tabulate(
    sides: Mapping[str, Callable[[], Run]], repeats: int, title: str, columns: Sequence[str], form: str = ",.0f"
) -> list[list[Run]]:
    """Run the sides in turns, print their table, and return the runs of each side, by turn.

    `columns`: of COLUMNS; the medians of all turns. `form`: of samples/s.
    """
    runs = harness.in_turns(sides, repeats)
    rows = [
        [
            name,
            harness.spread([run.samples_per_s for run in turns], form),
            f"{max(run.fastest for run in turns):{form}}",
            *(COLUMNS[c][1].format(harness.median([COLUMNS[c][0](run) for run in turns])) for c in columns),
        ]
        for name, turns in runs.items()
    ]
    harness.table(f"{title}; {harness.machine()}", ["", "samples/s", "fastest epoch", *columns], rows)
    return [list(turns) for turns in runs.values()]


def rates(sides: Sequence[Sequence[Run]]) -> list[list[float]]:
    """Return samples/s of each side, by turn."""
    return [[run.samples_per_s for run in turns] for turns in sides]


def first_epochs(sides: Sequence[Sequence[Run]]) -> list[list[float]]:
    """Return the seconds of each side from the start of `fit` to the end of its first epoch, by turn."""
    return [[COLUMNS["first epoch"][0](run) for run in turns] for turns in sides]
