"""Batches that only the client can draw: Keras's own epoch loop, which yields them instead of training on them."""

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from client_shim.call import trimmed
from client_shim.capture.data import FitData
from client_shim.feed import Epochs
from fdt.errors import CaptureError

_GENERATORS = "GeneratorDataAdapter"  # the adapter's name in both flavors
_DATASETS = "DatasetAdapter"  # in tf_keras
_NOTHING = {"OptionalSpec", "NoneTensorSpec"}  # the specs of None in Keras and tf.data


@dataclass(frozen=True)
class FeedPlan:
    """How the client draws its batches.

    Attributes:
        epochs: Yields each epoch's number and its batches.
        spec: TypeSpec structure of a batch.
        steps: Steps of an epoch; None while unknown.
        length: Batches of a pass, at whose end Keras 3 ends the epoch; 0 where it does not know them.
        draw_ahead: Draws and discards the batches that an undivided `fit` or validation has prefetched at its end, so
            that the generator is at the same position when the next one begins.
        ran_out: Returns whether the data have ended within an epoch, after which tf_keras trains no further one.
    """

    epochs: Epochs
    spec: Any
    steps: int | None
    length: int
    draw_ahead: Callable[[], None]
    ran_out: Callable[[], bool] = lambda: False

    def skip(self, last: int) -> None:
        """Draw and drop the batches of the epochs before `last`, which an earlier run has trained."""
        with contextlib.closing(self.epochs()) as epochs:
            for epoch, batches in epochs:
                if epoch >= last:
                    return
                for _ in batches:
                    pass


def plan(flavor: str, arguments: FitData) -> FeedPlan:
    """Return how the client draws the batches of `fit`.

    Args:
        flavor: "keras" or "tf_keras".
        arguments: The arguments of `fit`.

    Returns:
        The epochs, the spec of a batch and the steps of an epoch.

    Raises:
        CaptureError: Batches hold something other than tensors.
        Exception: Keras's own errors for arguments that it refuses.
    """
    made = _keras(arguments) if flavor == "keras" else _tf_keras(arguments)
    spec = trimmed(tf.nest.map_structure(lambda s: None if type(s).__name__ in _NOTHING else s, made.spec))
    for leaf in tf.nest.flatten(spec):
        if not isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            raise CaptureError(
                f"a batch must hold tensors; None beside tensors is not supported. Received: {type(leaf).__name__}"
            )
    return replace(made, spec=spec)


def _keras(arguments: FitData) -> FeedPlan:
    from fdt.compat.keras3 import TFEpochIterator

    with warnings.catch_warnings():
        # `shuffle=True` is fit's default, so the warning would concern no choice of the user
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed")
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
    return of_loop(loop, arguments.initial_epoch, arguments.epochs)


def of_loop(loop: Any, first: int = 0, last: int = 1) -> FeedPlan:
    """Return how the client draws the batches of the epochs `first` to `last` - 1 of Keras's own epoch loop `loop`."""
    return _of_epoch_iterator(loop, first, last) if hasattr(loop, "data_adapter") else _of_data_handler(loop)


def _of_epoch_iterator(loop: Any, first: int, last: int) -> FeedPlan:
    ahead = 0
    if type(loop.data_adapter).__name__ == _GENERATORS:
        loop._distributed_dataset, ahead = _as_asked(loop._distributed_dataset)

    def batches() -> Iterator[Any]:
        with loop.catch_stop_iteration():
            for first_step, last_step, iterator in loop:
                for _ in range(first_step, last_step + 1):
                    yield next(iterator)

    def epochs() -> Generator[tuple[int, Iterator[Any]], None, None]:
        loop.reset()  # as Keras's fit does first
        try:
            for epoch in range(first, last):
                yield epoch, batches()
        finally:
            draw_ahead()

    def draw_ahead() -> None:
        _draw(loop._current_iterator, ahead)

    spec, length = loop._distributed_dataset.element_spec, loop.data_adapter.num_batches or 0
    return FeedPlan(epochs, spec, loop.num_batches, length, draw_ahead)


def _tf_keras(arguments: FitData) -> FeedPlan:
    from fdt.compat.tf_keras import data_adapter

    loop = data_adapter.DataHandler(**vars(arguments))
    if type(loop._adapter).__name__ == _DATASETS and loop._adapter.should_recreate_iterator():
        loop._dataset = _MadeWhenRead(loop._dataset)
    return of_loop(loop)


def _of_data_handler(loop: Any) -> FeedPlan:
    ahead, iterators, original = 0, [None], loop.enumerate_epochs

    def enumerated() -> Iterator[tuple[int, Any]]:
        if isinstance(loop._dataset, _MadeWhenRead):
            loop._dataset.begin()
        for epoch, iterators[0] in original():
            yield epoch, iterators[0]

    loop.enumerate_epochs = enumerated
    if type(loop._adapter).__name__ == _GENERATORS:
        loop._dataset, ahead = _as_asked(loop._dataset)

    def batches(iterator: Any) -> Iterator[Any]:
        with loop.catch_stop_iteration():
            for _ in loop.steps():
                for _ in range(loop.step_increment + 1):
                    yield next(iterator)

    def epochs() -> Generator[tuple[int, Iterator[Any]], None, None]:
        try:
            for epoch, iterator in loop.enumerate_epochs():
                yield epoch, batches(iterator)
        finally:
            draw_ahead()

    def draw_ahead() -> None:
        _draw(iterators[0], ahead)

    spec, steps = loop._dataset.element_spec, loop.inferred_steps
    return FeedPlan(epochs, spec, steps, 0, draw_ahead, lambda: loop._insufficient_data)


class _MadeWhenRead:
    """A dataset whose iterators are made when they are read, but for the first, which tf_keras never reads.

    tf_keras makes the iterator of an epoch when the epoch begins. A validation before it may draw an order of the same
    shuffle.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.element_spec = dataset, dataset.element_spec
        self._begins = True

    def begin(self) -> None:
        """Make the next iterator at once."""
        self._begins = True

    def __iter__(self) -> Iterator[Any]:
        begins, self._begins = self._begins, False
        return iter(self._dataset) if begins else _elements(self._dataset)


def _elements(dataset: Any) -> Iterator[Any]:
    yield from dataset


def _as_asked(dataset: Any) -> tuple[Any, int]:
    """Return `dataset` without its prefetches, and their number.

    In an undivided run each prefetch is one batch ahead of the computing step. Here batches are read without a step in
    between, so a prefetch would draw more from the generator than Keras does.
    """
    ahead = 0
    while type(dataset).__name__ == "_PrefetchDataset":
        dataset, ahead = dataset._input_dataset, ahead + 1
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options), ahead


def _draw(iterator: Any, batches: int) -> None:
    with contextlib.suppress(StopIteration, tf.errors.OpError):
        for _ in range(0 if iterator is None else batches):
            next(iterator)
