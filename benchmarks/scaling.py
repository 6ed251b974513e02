"""HFDT on 1 to 16 simulated hosts: a step with measured computation, beside max(computation, transfer).

    python benchmarks/scaling.py                         # measures models that --out has not; a minute
    python benchmarks/scaling.py --models mlp10 --links 1 --bucket-mb 16 --out other.jsonl

Computation is the CPU time on one core of step functions that are cut after each bucket of gradients
(hfdt/worker/exchange.py), and of a whole step. Every rank has the script's batch, as with `hfdt run --batch
per-worker`, so computation does not depend on the number of ranks. BatchNorm is local.

The exchange is the ring of hfdt/collectives/simulated.py, on equal links to one switch. A rank computes while earlier
buckets are on the links. Buckets are sent one after the other, and the update follows the last.

    transfer = 2 (n - 1) / n * bytes of all gradients / bandwidth
    bound    = max(computation, transfer)
    earliest = max over buckets b (b is ready + transfer of b and of the buckets behind it) + update

No exchange of these buckets ends before `earliest`, which has no latency. Overlap is possible where `earliest` is
within 10 % of the bound. Nothing is sent during the forward pass, nor computed during the last bucket's transfer.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

from fdt.network import Cluster, NetworkLink, NodeGroup
from hfdt.collectives.simulated import SimulatedWorld

RANKS = (1, 2, 4, 8, 16)
MODELS = ("mlp10", "resnet20", "transformer")
SHRINK = 64  # gradients are smaller by this factor, and links slower: times stay
REPEATS = 15
TARGET = 1.1
HEADS = ("Gbit/s", "ranks", "step ms", "bound ms", "step/bound", "efficiency", "earliest/bound", "overlap")


@dataclass(frozen=True)
class Measured:
    """The computation of one rank.

    Attributes:
        ready_s: When each bucket is ready, in seconds from the start of the step.
        dense_bytes: Bytes of the dense gradients of each bucket.
        row_bytes: Bytes of one rank's rows of sparse gradients. The last bucket has those of all ranks.
        step_s: Seconds of the whole step.
    """

    model: str
    bucket_mb: float
    ready_s: tuple[float, ...]
    dense_bytes: tuple[int, ...]
    row_bytes: int
    step_s: float

    def sent(self, ranks: int) -> list[int]:
        """Return the bytes of each bucket."""
        return [*self.dense_bytes[:-1], self.dense_bytes[-1] + ranks * self.row_bytes]

    def transfer_s(self, ranks: int, bandwidth: float, first: int = 0) -> float:
        """Return the seconds that the buckets from `first` on take on one link, without latency."""
        return 2 * (ranks - 1) / ranks * sum(self.sent(ranks)[first:]) / bandwidth

    def earliest_s(self, ranks: int, bandwidth: float) -> float:
        """Return the least time of a step with any exchange of these buckets."""
        ends = [ready + self.transfer_s(ranks, bandwidth, b) for b, ready in enumerate(self.ready_s)]
        return max(ends) + self.step_s - self.ready_s[-1]

    def simulated_s(self, ranks: int, bandwidth: float, latency_s: float) -> float:
        """Return the time of a step of `ranks` ranks. `latency_s`: from host to host."""
        link = NetworkLink(bandwidth / SHRINK, latency_s / 2)
        world = SimulatedWorld(Cluster((NodeGroup("host", ranks),), link=link))
        vectors = [np.zeros(-(-count // SHRINK), np.uint8) for count in self.sent(ranks)]

        def rank(number: int) -> Any:
            for bucket, (ready_s, vector) in enumerate(zip(self.ready_s, vectors, strict=True)):
                yield world.env.timeout(max(0.0, ready_s - world.now_s))
                if ranks > 1:
                    yield world.rendezvous(number, f"bucket {bucket}", vector)
            yield world.env.timeout(self.step_s - self.ready_s[-1])

        for number in range(ranks):
            world.env.process(rank(number))
        world.env.run()
        return world.now_s


@dataclass(frozen=True)
class Row:
    """A row of the table: the times of a step in seconds."""

    model: str
    gbit: float
    ranks: int
    alone_s: float
    step_s: float
    bound_s: float
    earliest_s: float

    @property
    def overlap(self) -> bool:
        return self.ranks > 1 and self.earliest_s <= TARGET * self.bound_s

    def cells(self) -> list[str]:
        over = f"{self.step_s / self.bound_s:.3f}"
        overlap = "-" if self.ranks == 1 else "possible" if self.overlap else "not possible"
        times = [f"{1e3 * self.step_s:.1f}", f"{1e3 * self.bound_s:.1f}", over, f"{self.alone_s / self.step_s:.2f}"]
        return [f"{self.gbit:g}", str(self.ranks), *times, f"{self.earliest_s / self.bound_s:.3f}", overlap]


def measure(model: str, bucket_mb: float) -> Measured:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    sys.path.insert(0, str(harness.SCRIPTS))
    import keras
    import networked

    from fdt.ops import nbytes
    from hfdt.worker.exchange import buckets

    network, x, y, optimizer = networked.make(model, networked.BATCHES[model])
    variables, batch = network.trainable_variables, (tf.constant(x), tf.constant(y))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(variables)

    def gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = loss_of(batch[1], network(batch[0], training=True))
        return tape.gradient(loss, variables)

    def cut(positions: Sequence[int]) -> Callable[[], Any]:
        def run() -> list[Any]:
            made = gradients()
            return [weighed(made[i]) for i in positions]

        return tf.function(run, autograph=False)

    found = tf.function(gradients, autograph=False)()
    sparse = [i for i, g in enumerate(found) if isinstance(g, tf.IndexedSlices)]
    dense = [i for i in range(len(found)) if i not in sparse]
    order = [[dense[i] for i in b] for b in buckets([found[i] for i in dense], round(bucket_mb * 2**20))]
    until = [[i for bucket in order[: k + 1] for i in bucket] for k in range(len(order))]
    until[-1] += sparse
    step = tf.function(lambda: optimizer.apply(gradients(), variables), autograph=False)
    *ready_s, step_s = cpu_s([*map(cut, until), step])
    rows = sum(nbytes(found[i].values) + 8 * len(found[i].indices) for i in sparse)  # indices are sent as int64
    sizes = tuple(sum(nbytes(found[i]) for i in bucket) for bucket in order)
    return Measured(model, bucket_mb, tuple(ready_s), sizes, rows, step_s)


def weighed(gradient: Any) -> Any:
    import tensorflow as tf

    return 0.5 * (gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient)


def cpu_s(functions: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the CPU seconds of functions each of which does less than the next. They are called in turns.

    The minimum counts, and that of the functions behind it: other load only adds to the times.
    """
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(REPEATS + 1):
        for function, taken in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            if repeat:  # the first call traces
                taken.append(time.process_time() - began)
    least: list[float] = np.minimum.accumulate([min(taken) for taken in reversed(times)])[::-1].tolist()
    return least


def plot(rows: Sequence[Row], png: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models, links = (list(dict.fromkeys(getattr(r, name) for r in rows)) for name in ("model", "gbit"))
    figure, axes = pyplot.subplots(1, len(models), figsize=(4.2 * len(models), 3.8), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        for color, gbit in enumerate(links):
            of = [r for r in rows if (r.model, r.gbit) == (model, gbit)]
            for name, style in (("step", "-"), ("bound", ":")):
                times = [1e3 * getattr(r, f"{name}_s") for r in of]
                axis.semilogx([r.ranks for r in of], times, style, color=f"C{color}", label=f"{gbit:g} Gbit/s, {name}")
        axis.set(title=model, xlabel="ranks", ylabel="ms for a step", xticks=RANKS, xticklabels=RANKS, ylim=(0, None))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(png, dpi=80)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=(*MODELS, "cnn", "mlp50"), default=list(MODELS))
    parser.add_argument("--links", nargs="+", type=float, default=[1.0, 10.0, 100.0], help="Gbit/s of every link")
    parser.add_argument("--latency-us", type=float, default=40.0, help="from host to host")
    parser.add_argument("--bucket-mb", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=harness.ROOT / "benchmarks/results/scaling.jsonl")
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    kept = {(m.model, m.bucket_mb): m for m in (Measured(**json.loads(line)) for line in lines)}
    rows: list[Row] = []
    for model in args.models:
        if (key := (model, args.bucket_mb)) not in kept:
            kept[key] = measure(*key)
            with args.out.open("a") as out:
                out.write(json.dumps(asdict(kept[key])) + "\n")
        measured = kept[key]
        own = []
        for gbit, n in ((gbit, n) for gbit in args.links for n in RANKS):
            bandwidth = gbit * 1e9 / 8
            step_s = measured.simulated_s(n, bandwidth, args.latency_us / 1e6)
            bound_s = max(measured.step_s, measured.transfer_s(n, bandwidth))
            own.append(Row(model, gbit, n, measured.step_s, step_s, bound_s, measured.earliest_s(n, bandwidth)))
        sizes = ", ".join(f"{b / 1e6:.2f}" for b in measured.dense_bytes)
        ready = ", ".join(f"{1e3 * s:.1f}" for s in measured.ready_s)
        title = f"{model}: computation {1e3 * measured.step_s:.1f} ms; buckets of {sizes} MB are ready after {ready} ms"
        rows_mb = f"; a rank's sparse rows {measured.row_bytes / 1e6:.2f} MB" if measured.row_bytes else ""
        harness.table(title + rows_mb, HEADS, [each.cells() for each in own])
        rows += own
    if largest := max((r.step_s / r.bound_s for r in rows if r.overlap), default=None):
        harness.verdict("step over bound where overlap is possible, the largest", [largest], at_most=TARGET)
    if args.png:
        plot(rows, args.png)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
