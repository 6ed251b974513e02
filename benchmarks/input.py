"""A script whose `map` takes most of an epoch, under `hfdt run -np 2`: ranks that map only their rows, and all rows.

Both sides run the same script. The second has a map of whole batches that changes nothing and costs little: with it
HFDT does not divide the maps before. Two runs alone, with the map and without, give the map's part of an epoch.
"""

import argparse
import functools

import harness
import throughput


def hfdt(script: str, workers: int, words: list[str]) -> harness.Run:
    return harness.run([*harness.engine("hfdt", workers, script=script), *words])


def alone(script: str, words: list[str]) -> harness.Run:
    return harness.run([*harness.python(script), *words])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--rows", type=int, default=6_400)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="the script has a training loop of its own, not `fit`")
    args = parser.parse_args()
    script = "tape_loop.py" if args.loop else "input_fit.py"
    words = [f"--rows={args.rows}", f"--epochs={args.epochs}"]
    sides = {
        "alone, no map": functools.partial(alone, script, [*words, "--map=none"]),
        "alone": functools.partial(alone, script, [*words, "--map=divided"]),
        f"hfdt run -np {args.np}, all rows": functools.partial(hfdt, script, args.np, [*words, "--map=whole"]),
        f"hfdt run -np {args.np}, divided": functools.partial(hfdt, script, args.np, [*words, "--map=divided"]),
    }
    title = f"{script}, {args.rows} rows, {args.epochs} epochs"
    columns = "CPU, whole command", "loss"
    runs = throughput.tabulate(sides, args.repeats, title, columns)
    bare, own, whole, divided = throughput.rates(runs)
    part = [1 - ratio for ratio in harness.ratios(own, bare)]
    harness.console.print(f"the map's part of an epoch alone: {harness.spread(part, '.2f')}")
    claim = f"{'own loop' if args.loop else 'fit'}, divided over all rows, samples/s"
    harness.verdict(claim, harness.ratios(divided, whole), at_least=1.5)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
