"""HFDT's samples/s against two hand-written loops that do the same: Horovod's, and MultiWorkerMirroredStrategy's.

All train the same network on the same rows with the same global batch, workers and threads. samples/s is the steady
state: from the end of the first epoch to the end of the last, over all workers.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import harness
from harness import Run

# HFDT's own settings for its ranks (fdt/launch/mpirun.py, hfdt/comm/horovod.py); a peer gets the same.
PEER = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "HOROVOD_CYCLE_TIME": "0.1",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="57 k weights, or 1.9 M")
    parser.add_argument("--rows", type=int, default=25_600)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=["horovod", "mirrored"], default=["horovod", "mirrored"])
    return parser.parse_args()


def hfdt(workers: int, words: Sequence[str]) -> Run:
    return harness.run([*harness.engine("hfdt", workers), *words], {"HOROVOD_CYCLE_TIME": PEER["HOROVOD_CYCLE_TIME"]})


def horovod(workers: int, words: Sequence[str], script: str = "horovod_loop.py") -> Run:
    """mpirun, each rank bound to its share of the cores, as HFDT binds its own (horovodrun would not bind them)."""
    from fdt.launch.mpirun import find_mpirun

    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    each = harness.CORES // workers
    bound = ["--bind-to", "core", "--map-by", f"slot:PE={each}"] if each else ["--bind-to", "none"]
    flags = [*root, "--oversubscribe", *bound, "-np", str(workers)]
    argv = [find_mpirun() or "mpirun", *flags, *harness.python(script), *words]
    return harness.run(argv, {**harness.threads(workers), **PEER})


def mirrored(workers: int, words: Sequence[str]) -> Run:
    """One process a worker, each told by TF_CONFIG."""
    addresses = [f"127.0.0.1:{port}" for port in harness.free_ports(workers)]
    argv = [*harness.python("mirrored_loop.py"), *words]
    others = [
        subprocess.Popen(argv, env=_config(addresses, rank), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for rank in range(1, workers)
    ]
    try:
        return harness.run(argv, _config(addresses, 0))
    finally:
        for popen in others:
            harness.end(popen)


def _config(addresses: Sequence[str], rank: int) -> Mapping[str, str]:
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
    return {**os.environ, **harness.QUIET, **harness.threads(len(addresses)), "TF_CONFIG": json.dumps(cluster)}


def main() -> int:
    args = arguments()
    words = [f"--{name}={getattr(args, name)}" for name in ("model", "rows", "epochs", "batch")]
    runners = {"hfdt": hfdt, "horovod": horovod, "mirrored": mirrored}
    chosen = ["hfdt", *args.peers]
    sides = {name: functools.partial(runners[name], args.np, words) for name in chosen}
    runs = harness.in_turns(sides, args.repeats)
    rate = {name: [run.samples_per_s for run in runs[name]] for name in chosen}
    titles = {
        "hfdt": f"hfdt run -np {args.np} (Keras fit, unmodified)",
        "horovod": "hand-written Horovod loop (same Keras model)",
        "mirrored": "hand-written MultiWorkerMirroredStrategy loop (tf.Module)",
    }
    rows = [
        [
            titles[name],
            harness.spread(rate[name]),
            f"{max(run.fastest for run in runs[name]):,.0f}",
            f"{harness.median([run.wall_s for run in runs[name]]):.1f} s",
            f"{harness.median([run.said['accuracy'] for run in runs[name]]):.3f}",
        ]
        for name in chosen
    ]
    title = f"{args.model}, {args.rows} rows, global batch {args.batch}, {args.epochs} epochs; {harness.machine()}"
    harness.table(title, ["", "samples/s", "fastest epoch", "whole command", "accuracy"], rows)
    for peer, target in (("horovod", 0.95), ("mirrored", None)):
        if peer in chosen:
            ratios = [a / b for a, b in zip(rate["hfdt"], rate[peer], strict=True)]
            harness.verdict(f"hfdt over {peer}, samples/s", ratios, at_least=target)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except harness.Failed as error:
        sys.exit(f"{error}")
