"""HFDT's samples/s against two equivalent hand-written loops: Horovod's, and MultiWorkerMirroredStrategy's.

All train the same network on the same rows with the same global batch, workers and threads. samples/s is the steady
state: from the end of the first epoch to the end of the last, over all workers.
"""

import functools
import os
from collections.abc import Sequence

import harness
import tf_cluster
import throughput
from harness import Run

# HFDT's own settings for its ranks (fdt/launch/mpirun.py, hfdt/collectives/horovod.py); a peer gets the same.
PEER = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "HOROVOD_CYCLE_TIME": "0.1",
}


def hfdt(workers: int, words: Sequence[str]) -> Run:
    return harness.run([*harness.engine("hfdt", workers), *words], {"HOROVOD_CYCLE_TIME": PEER["HOROVOD_CYCLE_TIME"]})


def horovod(workers: int, words: Sequence[str], script: str = "horovod_loop.py") -> Run:
    """Run under mpirun with each rank bound to its part of the cores, as HFDT does (horovodrun does not bind)."""
    from fdt.launch.mpirun import find_mpirun

    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    each = harness.CORES // workers
    bound = ["--bind-to", "core", "--map-by", f"slot:PE={each}"] if each else ["--bind-to", "none"]
    flags = [*root, "--oversubscribe", *bound, "-np", str(workers)]
    argv = [find_mpirun() or "mpirun", *flags, *harness.python(script), *words]
    return harness.run(argv, {**harness.threads(workers), **PEER})


def mirrored(workers: int, words: Sequence[str]) -> Run:
    cluster = {"worker": tf_cluster.addresses(workers)}
    return tf_cluster.run([*harness.python("mirrored_loop.py"), *words], cluster, harness.threads(workers))


PEERS = {  # what it is, how it runs, the target
    "horovod": ("hand-written Horovod loop (same Keras model)", horovod, 0.95),
    "mirrored": ("hand-written MultiWorkerMirroredStrategy loop (tf.Module)", mirrored, None),
}


def main() -> int:
    parser = throughput.parser(__doc__, epochs=6)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    args = parser.parse_args()
    words = throughput.words(args)
    sides = {f"hfdt run -np {args.np} (Keras fit, unmodified)": functools.partial(hfdt, args.np, words)}
    for title, peer, _ in map(PEERS.__getitem__, args.peers):
        sides[title] = functools.partial(peer, args.np, words)
    ours, *theirs = throughput.compare(sides, args)
    for name, rates in zip(args.peers, theirs, strict=True):
        harness.verdict(f"hfdt over {name}, samples/s", harness.ratios(ours, rates), at_least=PEERS[name][2])
    return 0


if __name__ == "__main__":
    harness.conclude(main)
