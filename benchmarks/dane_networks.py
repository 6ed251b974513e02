"""DANE and other algorithms of rounds on LeNets, MNIST and CIFAR-10: test accuracy by round, and averages until 98 %.

    python benchmarks/dane_networks.py                                       # MNIST, LeNet5, 1, 2 and 4 workers
    python benchmarks/dane_networks.py --data cifar10 --algorithm "dane(mu=0.1)" -np 4 --batches per-worker
    python benchmarks/dane_networks.py --algorithm allreduce                      # the averages that allreduce needs

It uses HFDT's own session with ranks as threads of this process: real gradients and averages, no network. Accuracy and
rounds are measured, which do not depend on where ranks run; seconds are not.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import console
from pictures import accuracy, images

from hfdt.collectives.inprocess import on_ranks

MARK = 0.98
PAPER = {("mnist", "lenet5", 2): 0.9914, ("mnist", "lenet5", 4): 0.9897}
EVERY = 25  # batches between two looks at allreduce


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "cifar10"], default="mnist")
    parser.add_argument("--net", choices=["lenet3", "lenet5"], default="lenet5")
    parser.add_argument("--algorithm", default="dane")
    parser.add_argument("-np", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=int, default=6, help="a round each, under dane")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", choices=["global", "per-worker"], default="global", help="hfdt run --batch")
    parser.add_argument("--rate", type=float, default=0.02, help="of SGD, momentum 0.9")
    return parser.parse_args()


def network(args: argparse.Namespace, shape: tuple[int, ...]) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    body = [layers.Conv2D(6, 5, padding="same", activation="relu"), layers.MaxPooling2D()]
    if args.net == "lenet5":
        body += [layers.Conv2D(16, 5, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        body += [layers.Dense(120, "relu"), layers.Dense(84, "relu")]
    else:  # three layers with weights
        body += [layers.Flatten(), layers.Dense(120, "relu")]
    model = keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(args.rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


# -- rules that speak once a round -------------------------------------------------------------------------------------
def rounds(args: argparse.Namespace) -> None:
    (x, y), test = images(args.data)
    for size in args.np:
        began = time.monotonic()
        curve = accuracies(args, size, x, y, test)
        paper = PAPER.get((args.data, args.net, size))
        reached = next((str(i + 1) for i, a in enumerate(curve) if a >= MARK), "not reached")
        console.print(
            f"{args.data} {args.net} {args.algorithm} -np {size}, SGD {args.rate:g}, "
            f"batches {args.batch} {args.batches}: "
            f"test accuracy by round {' '.join(f'{a:.4f}' for a in curve)}; best {max(curve):.4f}"
            f"{f', paper {paper}' if paper else ''}; rounds to {MARK:.0%}: {reached} "
            f"({time.monotonic() - began:.0f} s)"
        )


def accuracies(args: argparse.Namespace, size: int, x: Any, y: Any, test: Any) -> list[float]:
    """Return the test accuracy after every epoch of the algorithm over `size` ranks."""
    from fdt.keras import flavor_of
    from fdt.trainable import Trainable
    from hfdt.worker.session import RankProgram, patches

    models = [network(args, x.shape[1:]) for _ in range(size)]
    flavor = flavor_of(models[0])
    options = {"rule": args.algorithm, "batch": args.batches, "lr_scale": "none"}
    with patches(flavor.name), opened(flavor, models, args, x, y) as source:

        def rank(comm: Any) -> list[float]:
            model = models[comm.rank]
            with contextlib.closing(RankProgram(Trainable(flavor, model), comm, options)) as session:
                session.prepare(source(), None)
                own, found = source(), []
                for epoch in range(args.epochs):
                    session.train(own, epoch, lambda step, logs: True)
                    found.append(accuracy(model, *test) if comm.rank == 0 else 0.0)
                return found

        return on_ranks(size, rank, wait_s=3600.0)[0]


@contextlib.contextmanager
def opened(flavor: Any, models: list[Any], args: argparse.Namespace, x: Any, y: Any) -> Iterator[Callable[[], Any]]:
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from fdt.data import open_source
    from fdt.job import FitArguments

    with contextlib.closing(LocalBlobs.create()) as blobs:
        held = capture_data(flavor.name, blobs, x, y, batch_size=args.batch)
        for model in models:
            if not flavor.built(model):
                flavor.build(model, held.spec)
        fit = FitArguments(batch_size=args.batch, epochs=args.epochs)
        yield lambda: open_source(held.train, fit, blobs, 7, training=True, flavor=flavor.name)


# -- allreduce ---------------------------------------------------------------------------------------------------------
def allreduce(args: argparse.Namespace) -> None:
    """Print the batches, which are averages, until the mark: allreduce trains as one machine does."""
    import keras

    (x, y), test = images(args.data)
    model, curve = network(args, x.shape[1:]), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch % EVERY == EVERY - 1:
                curve.append(accuracy(self.model, *test))
                if curve[-1] >= MARK:
                    self.model.stop_training = True

    model.fit(x, y, batch_size=args.batch, epochs=args.epochs, verbose=0, callbacks=[Look()])
    found = f"{EVERY * len(curve)}" if curve[-1] >= MARK else "not reached"
    console.print(f"{args.data} {args.net} allreduce: averages to {MARK:.0%}: {found} (best {max(curve):.4f})")


def main() -> int:
    args = arguments()
    (allreduce if args.algorithm == "allreduce" else rounds)(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
