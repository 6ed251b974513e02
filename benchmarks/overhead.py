"""The overhead of `hfdt run -np 1` and `nfdt run -np 1` against plain `python`, on the same unmodified script.

A whole command is timed, with its start, on a job of a minute or so and on a short one. The slope of the line through
the two points is the cost of an epoch, and its intercept is the fixed cost.
"""

import argparse
import functools
from collections.abc import Mapping, Sequence

import harness
from harness import Run

NAMES = {"python": "python", "hfdt": "hfdt run -np 1", "nfdt": "nfdt run -np 1"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=["hfdt", "nfdt"], default=["hfdt", "nfdt"])
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="57 k weights, or 1.9 M")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=16, help="of the long job")
    parser.add_argument("--short-epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args()


def command(name: str) -> list[str]:
    return harness.python("keras_fit.py") if name == "python" else harness.engine(name, 1)


def measure(args: argparse.Namespace, epochs: int) -> dict[str, list[Run]]:
    words = [f"--model={args.model}", f"--rows={args.rows}", f"--batch={args.batch}", f"--epochs={epochs}"]
    sides = {name: functools.partial(harness.run, [*command(name), *words]) for name in ("python", *args.engines)}
    return harness.in_turns(sides, args.repeats)


def per_epoch(long: Run, short: Run) -> float:
    """Seconds of one more epoch."""
    return (long.wall_s - short.wall_s) / (epochs_of(long) - epochs_of(short))


def per_epoch_cpu(long: Run, short: Run) -> float:
    return (long.cpu_s - short.cpu_s) / (epochs_of(long) - epochs_of(short))


def fixed(long: Run, short: Run) -> float:
    """Seconds of a command with no epoch at all."""
    return short.wall_s - epochs_of(short) * per_epoch(long, short)


def epochs_of(run: Run) -> int:
    return len(run.said["epoch_ends"])


def show_costs(long: Mapping[str, Sequence[Run]], short: Mapping[str, Sequence[Run]]) -> None:
    rows = []
    for name, runs in long.items():
        pairs = list(zip(runs, short[name], strict=True))
        rows.append(
            [
                NAMES[name],
                harness.spread([run.wall_s for run in runs], ".1f"),
                harness.spread([per_epoch(*pair) for pair in pairs], ".2f"),
                harness.spread([fixed(*pair) for pair in pairs], ".1f"),
                harness.spread([per_epoch_cpu(*pair) for pair in pairs], ".2f"),
                harness.spread([run.samples_per_s for run in runs]),
            ]
        )
    headings = ["", "whole command, s", "an epoch, s", "fixed cost, s", "CPU of an epoch, s", "samples/s"]
    harness.table("The long job, and the line through it and the short one", headings, rows)


def show_phases(title: str, measured: Mapping[str, Sequence[Run]]) -> None:
    medians = {
        name: {phase: harness.median([run.phases[phase] for run in runs]) for phase in runs[0].phases}
        for name, runs in measured.items()
    }
    phases = list(next(iter(medians.values())))
    rows = [[phase, *(f"{medians[name][phase]:.2f}" for name in medians)] for phase in phases]
    harness.table(title, ["seconds", *(NAMES[name] for name in medians)], rows)


def main() -> int:
    args = arguments()
    short, long = measure(args, args.short_epochs), measure(args, args.epochs)
    job = f"{args.model}, {args.rows} rows, batch {args.batch}"
    harness.console.print(f"\n{job}, {args.epochs} and {args.short_epochs} epochs; {harness.machine()}")
    show_phases(f"Where the time goes, {args.epochs} epochs", long)
    show_costs(long, short)
    wall = {name: [run.wall_s for run in runs] for name, runs in long.items()}
    for name in args.engines:
        ratios = harness.ratios(wall[name], wall["python"])
        harness.verdict(f"{NAMES[name]} over python, wall time of the whole command", ratios, at_most=1.05)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
