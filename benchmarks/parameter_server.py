"""NFDT's samples/s against a hand-written loop under TensorFlow's ParameterServerStrategy that does the same.

Both: one parameter server and `-np` workers as processes of this machine, whole batches dealt to workers, asynchronous
momentum SGD, the same network, rows and threads. samples/s is the steady state: from the end of the first epoch to the
end of the last, over all workers.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import harness
from harness import Run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="57 k weights, or 1.9 M")
    parser.add_argument("--rows", type=int, default=25_600)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--rule", default="asgd", help="NFDT's algorithm; asgd is what the peer does")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def nfdt(args: argparse.Namespace, words: Sequence[str]) -> Run:
    return harness.run([*harness.engine("nfdt", args.np, "--rule", args.rule), "--async", *words])


def strategy(args: argparse.Namespace, words: Sequence[str]) -> Run:
    """The chief, `-np` workers and one server, each told by TF_CONFIG."""
    ports = [f"127.0.0.1:{port}" for port in harness.free_ports(args.np + 2)]
    cluster = {"worker": ports[: args.np], "ps": ports[-2:-1], "chief": ports[-1:]}
    argv = [*harness.python("server_loop.py"), *words]
    tasks = [("ps", 0), *(("worker", i) for i in range(args.np))]
    others = [
        subprocess.Popen(
            argv, env=_config(cluster, kind, i, args.np), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for kind, i in tasks
    ]
    try:
        return harness.run(argv, _config(cluster, "chief", 0, args.np))
    finally:
        for popen in others:
            harness.end(popen)


def _config(cluster: Mapping[str, Sequence[str]], kind: str, index: int, workers: int) -> Mapping[str, str]:
    task = {"cluster": cluster, "task": {"type": kind, "index": index}}
    return {**os.environ, **harness.QUIET, **harness.threads(workers), "TF_CONFIG": json.dumps(task)}


def main() -> int:
    args = arguments()
    words = [f"--{name}={getattr(args, name)}" for name in ("model", "rows", "epochs", "batch", "rate")]
    runs = harness.in_turns({"nfdt": lambda: nfdt(args, words), "peer": lambda: strategy(args, words)}, args.repeats)
    rate = {name: [run.samples_per_s for run in runs[name]] for name in runs}
    titles = {
        "nfdt": f"nfdt run --rule {args.rule} --async -np {args.np} (Keras fit, unmodified)",
        "peer": "hand-written ParameterServerStrategy loop (tf.Module)",
    }
    rows = [
        [
            titles[name],
            harness.spread(rate[name]),
            f"{max(run.fastest for run in runs[name]):,.0f}",
            f"{harness.median([run.wall_s for run in runs[name]]):.1f} s",
            f"{harness.median([run.said['accuracy'] for run in runs[name]]):.3f}",
        ]
        for name in titles
    ]
    title = f"{args.model}, {args.rows} rows, batch {args.batch}, {args.epochs} epochs; {harness.machine()}"
    harness.table(title, ["", "samples/s", "fastest epoch", "whole command", "accuracy"], rows)
    ratios = [a / b for a, b in zip(rate["nfdt"], rate["peer"], strict=True)]
    harness.verdict("nfdt over ParameterServerStrategy, samples/s", ratios)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except harness.Failed as error:
        sys.exit(f"{error}")
