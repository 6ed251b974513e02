"""--shard-optimizer on and off: samples/s of the MLP with 10 M weights and Adam, ranks on this machine.

    python benchmarks/shard_optimizer.py            # two ranks, some minutes
    python benchmarks/shard_optimizer.py -np 4

Off, every rank updates every weight: three arrays of 42 MB. On, a rank updates its part.
"""

import argparse
import functools

import harness
import throughput

TARGET = 1.25
OPTION = "--shard-optimizer"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    words = ["mlp10", str(args.rows), str(args.epochs)]
    sides = {
        name: functools.partial(
            harness.run, [*harness.engine("hfdt", args.np, *options, script="networked_fit.py"), *words]
        )
        for name, options in {"off": (), OPTION: (OPTION,)}.items()
    }
    title = f"MLP, 10 M weights, Adam, -np {args.np}, {args.epochs} epochs of {args.rows} rows"
    off, on = throughput.rates(throughput.tabulate(sides, args.repeats, title, ("whole command", "loss"), ",.1f"))
    harness.verdict(f"{OPTION} over off", harness.ratios(on, off), at_least=TARGET)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
