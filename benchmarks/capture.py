"""Seconds and bytes of a model's program: captured as `fit` does it, and rebuilt as a worker does it.

Each model runs in a process of its own, so that no cache is warm. Its program is its Python objects without the values
of variables. Those are copied separately, with the optimizer's, and are shown in a column of their own.
"""

import argparse
import functools
from collections.abc import Sequence

import harness
from harness import Run

STEPS = ("capture", "rebuild", "copy")
MODELS = ("ResNet50", "EfficientNetB0", "DenseNet121", "MobileNetV2", "Transformer")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def seconds(runs: Sequence[Run], *steps: str) -> list[list[float]]:
    """Of wall time and of CPU, one for each run, `steps` added."""
    return [[sum(run.said[step][clock] for step in steps) for run in runs] for clock in (0, 1)]


def row(name: str, runs: Sequence[Run]) -> list[str]:
    said = runs[0].said
    times = [" / ".join(f"{harness.median(of):.2f}" for of in seconds(runs, step)) for step in STEPS]
    return [name, str(said["layers"]), f"{said['objects'] / 1e3:,.0f}", f"{said['weights'] / 1e6:,.0f}", *times]


def main() -> int:
    args = arguments()
    script = functools.partial(harness.python, "capture_model.py")
    sides = {name: functools.partial(harness.run, [*script(), name]) for name in args.models}
    runs = harness.in_turns(sides, args.repeats)
    headings = ["seconds: wall / CPU", "layers", "program, kB", "weights, MB", "capture", "rebuild", "weights' copy"]
    harness.table(f"Capture; {harness.machine()}", headings, [row(*item) for item in runs.items()])
    for name, of in runs.items():
        for clock, spent in zip(("wall time", "CPU"), seconds(of, "capture", "rebuild"), strict=True):
            harness.verdict(f"{name}, capture and rebuild, seconds of {clock} (not a ratio)", spent, at_most=2.0)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
