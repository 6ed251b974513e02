"""NFDT's samples/s against an equivalent hand-written loop under TensorFlow's ParameterServerStrategy.

Both have one parameter server and `-np` workers as processes of this machine, whole batches dispatched to workers,
asynchronous momentum SGD, the same network, rows and threads. samples/s is the steady state: from the end of the first
epoch to the end of the last, over all workers.
"""

import functools
from collections.abc import Sequence

import harness
import tf_cluster
import throughput
from harness import Run


def nfdt(workers: int, rule: str, words: Sequence[str]) -> Run:
    return harness.run([*harness.engine("nfdt", workers, "--algorithm", rule), "--async", *words])


def strategy(workers: int, words: Sequence[str]) -> Run:
    """The chief, `workers` workers and one server."""
    addresses = tf_cluster.addresses(workers + 2)
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    return tf_cluster.run([*harness.python("server_loop.py"), *words], cluster, harness.threads(workers))


def main() -> int:
    parser = throughput.parser(__doc__, epochs=6)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--algorithm", default="asgd", help="NFDT's algorithm; asgd is what the peer does")
    args = parser.parse_args()
    words = throughput.words(args, "rate")
    ours = f"nfdt run --algorithm {args.algorithm} --async -np {args.np} (Keras fit, unmodified)"
    sides = {
        ours: functools.partial(nfdt, args.np, args.algorithm, words),
        "hand-written ParameterServerStrategy loop (tf.Module)": functools.partial(strategy, args.np, words),
    }
    rates = throughput.compare(sides, args)
    harness.verdict("nfdt over ParameterServerStrategy, samples/s", harness.ratios(*rates))
    return 0


if __name__ == "__main__":
    harness.conclude(main)
