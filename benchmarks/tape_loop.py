"""A training loop of the script's own, under `hfdt run -np 2`, against the same loop with Horovod added by hand.

Same network, rows, global batch, workers and threads; samples/s from the end of the first epoch to the end of the last.
"""

import functools
from collections.abc import Sequence

import allreduce
import harness
import throughput


def hfdt(workers: int, words: Sequence[str]) -> harness.Run:
    return harness.run([*harness.engine("hfdt", workers, script="tape_loop.py"), *words])


def main() -> int:
    args = throughput.parser(__doc__, epochs=5).parse_args()
    words = throughput.words(args)
    by_hand = functools.partial(allreduce.horovod, args.np, words, "horovod_tape.py")
    sides = {
        f"hfdt run -np {args.np} (tape loop, unmodified)": functools.partial(hfdt, args.np, words),
        "the same loop with Horovod added by hand": by_hand,
    }
    rates = throughput.compare(sides, args)
    harness.verdict("hfdt over Horovod by hand, samples/s", harness.ratios(*rates), at_least=1.0)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
