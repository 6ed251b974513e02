"""samples/s of one workload on several sides: the arguments, the alternating runs, one table."""

import argparse
from collections.abc import Callable, Mapping

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


def compare(sides: Mapping[str, Callable[[], Run]], args: argparse.Namespace) -> list[list[float]]:
    """Return samples/s of each side, by turn: from the end of the first epoch to the end of the last."""
    runs = harness.in_turns(sides, args.repeats)
    rows = [
        [
            name,
            harness.spread([run.samples_per_s for run in turns]),
            f"{max(run.fastest for run in turns):,.0f}",
            f"{harness.median([run.wall_s for run in turns]):.1f} s",
            f"{harness.median([run.said['accuracy'] for run in turns]):.3f}",
        ]
        for name, turns in runs.items()
    ]
    title = f"{args.model}, {args.rows} rows, batch {args.batch}, {args.epochs} epochs; {harness.machine()}"
    harness.table(title, ["", "samples/s", "fastest epoch", "whole command", "accuracy"], rows)
    return [[run.samples_per_s for run in turns] for turns in runs.values()]
