"""A training loop of the script's own, under `hfdt run -np 2`, against the same loop with Horovod added by hand.

Same network, rows, global batch, workers and threads; samples/s from the end of the first epoch to the end of the last.
"""

import argparse
import functools
import sys

import allreduce
import harness

TITLES = {
    "hfdt": "hfdt run -np {np} (tape loop, unmodified)",
    "horovod": "the same loop with Horovod added by hand",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="57 k weights, or 1.9 M")
    parser.add_argument("--rows", type=int, default=25_600)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def hfdt(workers: int, words: list[str]) -> harness.Run:
    return harness.run([*harness.engine("hfdt", workers, script="tape_loop.py"), *words])


def main() -> int:
    args = arguments()
    words = [f"--{name}={getattr(args, name)}" for name in ("model", "rows", "epochs", "batch")]
    sides = {
        "hfdt": functools.partial(hfdt, args.np, words),
        "horovod": functools.partial(allreduce.horovod, args.np, words, "horovod_tape.py"),
    }
    runs = harness.in_turns(sides, args.repeats)
    rate = {name: [run.samples_per_s for run in runs[name]] for name in sides}
    rows = [
        [
            TITLES[name].format(np=args.np),
            harness.spread(rate[name]),
            f"{max(run.fastest for run in runs[name]):,.0f}",
            f"{harness.median([run.wall_s for run in runs[name]]):.1f} s",
            f"{harness.median([run.said['accuracy'] for run in runs[name]]):.3f}",
        ]
        for name in sides
    ]
    title = f"{args.model}, {args.rows} rows, global batch {args.batch}, {args.epochs} epochs; {harness.machine()}"
    harness.table(title, ["", "samples/s", "fastest epoch", "whole command", "accuracy"], rows)
    ratios = [a / b for a, b in zip(rate["hfdt"], rate["horovod"], strict=True)]
    harness.verdict("hfdt over Horovod by hand, samples/s", ratios, at_least=0.95)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except harness.Failed as error:
        sys.exit(f"{error}")
