"""Data that only the client can draw, as Keras's own epoch loop, which yields batches instead of training on them."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.feed import Epochs, trimmed
from fdt.errors import CaptureError

_GENERATORS = "GeneratorDataAdapter"  # both flavors'
_NOTHING = {"OptionalSpec", "NoneTensorSpec"}  # specs of None: Keras's, tf.data's


@dataclass(frozen=True)
class FeedPlan:
    """`spec`: TypeSpec structure of a batch. `steps`: of an epoch, None while unknown."""

    epochs: Epochs
    spec: Any
    steps: int | None


@dataclass(frozen=True)
class FeedArguments:
    """The arguments of `fit` that Keras's own epoch loops take."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    shuffle: Any = True
    class_weight: dict[int, float] | None = None
    epochs: int = 1
    initial_epoch: int = 0
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    model: Any = None


def plan(flavor: str, arguments: FeedArguments) -> FeedPlan:
    """Raises Keras's own errors for what it does not take, and CaptureError where batches hold no tensors."""
    made = _keras(arguments) if flavor == "keras" else _tf_keras(arguments)
    spec = trimmed(tf.nest.map_structure(lambda s: None if type(s).__name__ in _NOTHING else s, made.spec))
    for leaf in tf.nest.flatten(spec):
        if not isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            raise CaptureError(
                f"batches must hold tensors; None amid others is not carried yet. Received: {type(leaf).__name__}"
            )
    return FeedPlan(made.epochs, spec, made.steps)


def _keras(arguments: FeedArguments) -> FeedPlan:
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed")  # it is fit's default
        loop = TFEpochIterator(
            x=arguments.x,
            y=arguments.y,
            sample_weight=arguments.sample_weight,
            batch_size=arguments.batch_size,
            steps_per_epoch=arguments.steps_per_epoch,
            shuffle=arguments.shuffle,
            class_weight=arguments.class_weight,
            distribute_strategy=tf.distribute.get_strategy(),
        )
    ahead = 0
    if type(loop.data_adapter).__name__ == _GENERATORS:
        loop._distributed_dataset, ahead = _as_asked(loop._distributed_dataset)

    def batches() -> Iterator[Any]:
        with loop.catch_stop_iteration():
            for _, _, iterator in loop:
                yield next(iterator)

    def epochs() -> Iterator[tuple[int, Iterator[Any]]]:
        loop.reset()  # as fit does before it begins
        try:
            for epoch in range(arguments.initial_epoch, arguments.epochs):
                yield epoch, batches()
        finally:
            _draw(loop._current_iterator, ahead)

    return FeedPlan(epochs, loop._distributed_dataset.element_spec, loop.num_batches)


def _tf_keras(arguments: FeedArguments) -> FeedPlan:
    from tf_keras.src.engine.data_adapter import DataHandler

    loop = DataHandler(**vars(arguments))
    ahead = 0
    if type(loop._adapter).__name__ == _GENERATORS:
        loop._dataset, ahead = _as_asked(loop._dataset)

    def batches(iterator: Any) -> Iterator[Any]:
        with loop.catch_stop_iteration():
            for _ in loop.steps():
                yield next(iterator)

    def epochs() -> Iterator[tuple[int, Iterator[Any]]]:
        iterator = None
        try:
            for epoch, iterator in loop.enumerate_epochs():
                yield epoch, batches(iterator)
        finally:
            _draw(iterator, ahead)

    return FeedPlan(epochs, loop._dataset.element_spec, loop.inferred_steps)


def _as_asked(dataset: Any) -> tuple[Any, int]:
    """`dataset` without its prefetches, and how many there are. Alone each of them is one batch ahead of the step that
    computes; here, where batches are taken as fast as they come, it would draw the more of the generator."""
    ahead = 0
    while type(dataset).__name__ == "_PrefetchDataset":
        dataset, ahead = dataset._input_dataset, ahead + 1
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options), ahead


def _draw(iterator: Any, batches: int) -> None:
    """What alone has been drawn, and goes nowhere, when `fit` ends: the next `fit` begins behind it."""
    with contextlib.suppress(StopIteration, tf.errors.OpError):
        for _ in range(0 if iterator is None else batches):
            next(iterator)
