"""What the shim costs a script that never trains: the whole command against `python script.py`, in seconds."""

import argparse
import functools

import harness

TARGET_S = 0.3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    script = "no_training.py"
    sides = {"python": functools.partial(harness.run, harness.python(script))}
    for name in ("hfdt", "nfdt"):
        sides[name] = functools.partial(harness.run, harness.engine(name, 2, script=script))
    runs = harness.in_turns(sides, args.repeats)
    wall = {name: [run.wall_s for run in runs[name]] for name in sides}
    rows = [
        [name, harness.spread(wall[name], ".2f"), harness.spread([run.cpu_s for run in runs[name]], ".2f")]
        for name in sides
    ]
    harness.table(f"A script that never trains; {harness.machine()}", ["", "whole command, s", "CPU, s"], rows)
    for name in ("hfdt", "nfdt"):
        costs = [a - b for a, b in zip(wall[name], wall["python"], strict=True)]
        harness.verdict(f"{name} run -np 2 less python, seconds (not a ratio)", costs, at_most=TARGET_S)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
