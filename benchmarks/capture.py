"""Seconds and bytes that a model's program takes: captured as `fit` does it, rebuilt as a worker does it.

Each model in a process of its own, so nothing is warm. Its program is its Python objects without the values of
variables; those are copied apart, with the optimizer's, and shown beside it.
"""

import argparse
import functools
from collections.abc import Sequence

import harness
from harness import Run

MODELS = ("ResNet50", "EfficientNetB0", "DenseNet121", "MobileNetV2", "Transformer")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def row(name: str, runs: Sequence[Run]) -> list[str]:
    seconds = [harness.spread([run.said[what] for run in runs], ".2f") for what in ("capture", "rebuild", "copy")]
    said = runs[0].said
    return [name, str(said["layers"]), f"{said['objects'] / 1e3:,.0f}", f"{said['weights'] / 1e6:,.0f}", *seconds]


def main() -> int:
    args = arguments()
    script = functools.partial(harness.python, "capture_model.py")
    sides = {name: functools.partial(harness.run, [*script(), name]) for name in args.models}
    runs = harness.in_turns(sides, args.repeats)
    headings = ["", "layers", "program, kB", "weights, MB", "capture, s", "rebuild, s", "weights' copy, s"]
    harness.table(f"Capture; {harness.machine()}", headings, [row(*item) for item in runs.items()])
    for name, of in runs.items():
        seconds = [run.said["capture"] + run.said["rebuild"] for run in of]
        harness.verdict(f"{name}, seconds of capture and rebuild (not a ratio)", seconds, at_most=2.0)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
