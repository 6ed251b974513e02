"""Eager operations on a batch's rows under `hfdt run -np 2`, against plain TensorFlow: CPU microseconds per call.

python benchmarks/placements.py [--repeats 3]
"""

import argparse
import functools

import harness

ALONE, DIVIDED = "python", "hfdt run -np 2"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    script = "eager_operations.py"
    env = harness.threads(2)
    sides = {
        ALONE: functools.partial(harness.run, harness.python(script), env),
        DIVIDED: functools.partial(harness.run, harness.engine("hfdt", 2, script=script), env),
    }
    runs = harness.in_turns(sides, args.repeats)
    rows = []
    for name in runs[ALONE][0].said:
        alone, divided = ([run.said[name] for run in runs[side]] for side in sides)
        ratio = harness.spread(harness.ratios(divided, alone), ".2f")
        rows.append((name, harness.spread(alone, ".1f"), harness.spread(divided, ".1f"), ratio))
    harness.table("microseconds of CPU of an eager operation", ("operation", ALONE, DIVIDED, "ratio"), rows)
    every = [
        sum(divided.said.values()) / sum(alone.said.values())
        for alone, divided in zip(runs[ALONE], runs[DIVIDED], strict=True)
    ]
    harness.verdict("eager operations with a placement over plain TensorFlow, all together", every, at_most=2.0)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
