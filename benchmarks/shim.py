"""The shim's cost for a script that never trains: the whole command against `python script.py`, in seconds.

Two scripts have no `fit`, so no worker is started: one only prints, one makes a model. The third has a `fit` that it
does not reach.
"""

import argparse
import functools

import harness

TARGETS_S = {"hello.py": 0.3, "no_training.py": 0.3, "fit_not_reached.py": None}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scripts", nargs="+", choices=TARGETS_S, default=list(TARGETS_S))
    return parser.parse_args()


def compare(script: str, repeats: int) -> None:
    sides = {"python": functools.partial(harness.run, harness.python(script))}
    for name in ("hfdt", "nfdt"):
        sides[name] = functools.partial(harness.run, harness.engine(name, 2, script=script))
    runs = harness.in_turns(sides, repeats)
    wall, cpu = ({name: [getattr(run, what) for run in runs[name]] for name in sides} for what in ("wall_s", "cpu_s"))
    rows = [[name, harness.spread(wall[name], ".2f"), harness.spread(cpu[name], ".2f")] for name in sides]
    harness.table(f"{script}; {harness.machine()}", ["", "whole command, s", "CPU, s"], rows)
    for name in ("hfdt", "nfdt"):
        for what, spent in (("wall", wall), ("CPU", cpu)):
            costs = [a - b for a, b in zip(spent[name], spent["python"], strict=True)]
            said = f"{script}, {name} run -np 2 less python, seconds of {what} (not a ratio)"
            harness.verdict(said, costs, at_most=TARGETS_S[script])


def main() -> int:
    args = arguments()
    for script in args.scripts:
        compare(script, args.repeats)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
