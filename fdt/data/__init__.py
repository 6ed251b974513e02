"""The batches of a job, as each rank of each engine reads them."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tensorflow as tf

from fdt.blobs import Blobs
from fdt.data.arrays import ArraySource, KerasOrder
from fdt.data.epochs import EpochBoundary, Epochs, iterators_of
from fdt.data.feed import Feed, FeedSource
from fdt.data.graph import GraphSource
from fdt.data.source import Source
from fdt.errors import UsageError
from fdt.job import ArrayData, Data, FeedData, FitArguments, GraphData
from fdt.typing import Batch

__all__ = ["Batch", "Feed", "Source", "first_batch_checksum", "iterators_of_fit", "open_source"]

DEFAULT_BATCH = 32  # Keras's default
RANDOM_SAMPLING = "random-sampling"


def open_source(
    data: Data,
    fit: FitArguments,
    blobs: Blobs,
    seed: int,
    *,
    training: bool,
    options: Mapping[str, str] | None = None,
    feed: Feed | None = None,
    flavor: str = "keras",
) -> Source:
    """Open the data of a job.

    Args:
        data: The training or validation data.
        fit: The arguments of `fit`. `class_weight` is not applied: the client has multiplied it into the data.
        blobs: The store of the data's arrays.
        seed: Determines the order of shuffles.
        training: False: validation data, which are never shuffled and are read from their start every time.
        options: The job's options. "partition" may be "random-sampling", for arrays only.
        feed: Receives the batches of FeedData.
        flavor: "keras" or "tf_keras"; they differ in an epoch that reaches the end of the data.

    Raises:
        UsageError: Random sampling of data that are not arrays.
    """
    fresh = training and (options or {}).get("partition") == RANDOM_SAMPLING
    if isinstance(data, ArrayData):
        return _arrays(data, fit, blobs, seed, training, fresh, flavor)
    if fresh:
        raise UsageError("--partition random-sampling needs arrays. Received: data that come as batches in an order")
    if isinstance(data, FeedData):
        if feed is None:
            raise ValueError("data that the client sends need a feed. Received: feed=None")
        return FeedSource(data, feed, blobs, fit.initial_epoch)
    return _graph(data, fit, blobs, seed, training, flavor)


def first_batch_checksum(source: Source) -> str:
    """Return 16 hexadecimal digits, equal on ranks whose first batches have equal dtypes, shapes and values."""
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(source.first_batch(), expand_composites=True):
        if leaf is not None:
            array = np.asarray(leaf.numpy())
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
    return digest.hexdigest()[:16]


def _arrays(
    data: ArrayData, fit: FitArguments, blobs: Blobs, seed: int, training: bool, fresh: bool, flavor: str
) -> ArraySource:
    steps = fit.steps_per_epoch if training else fit.validation_steps
    batch = fit.batch_size if training else fit.validation_batch_size
    batch = batch or (-(-data.rows // steps) if steps else DEFAULT_BATCH)
    passes = max(fit.epochs - fit.initial_epoch, 1)
    plan = Epochs(-(-data.rows // batch), steps, fit.initial_epoch, passes, _epoch_boundary(training, flavor))
    shuffle = training and fit.shuffle
    keras = KerasOrder(data.rows, fit.order_seed - 1, plan) if shuffle and fit.order_seed else None
    return ArraySource(data, blobs, batch, plan, shuffle=shuffle, seed=seed, fresh=fresh, keras=keras)


def iterators_of_fit(data: GraphData, steps: int, epochs: int, flavor: str) -> int:
    """Return how many iterators of a dataset an undivided `fit` makes. `steps`: `steps_per_epoch`, 0 for none."""
    steps = _steps_of_pass(data, steps, flavor)
    return iterators_of(epochs, data.cardinality, steps, _epoch_boundary(True, flavor))


def _steps_of_pass(data: GraphData, steps: int, flavor: str) -> int:
    """Return `steps`, or 0 where tf_keras begins a new pass with every epoch."""
    return 0 if flavor == "tf_keras" and steps == data.cardinality else steps


def _graph(data: GraphData, fit: FitArguments, blobs: Blobs, seed: int, training: bool, flavor: str) -> GraphSource:
    steps = _steps_of_pass(data, fit.steps_per_epoch if training else fit.validation_steps, flavor)
    data = replace(data, seed=data.seed or seed)
    return GraphSource(data, blobs, steps=steps, first=fit.initial_epoch, boundary=_epoch_boundary(training, flavor))


def _epoch_boundary(training: bool, flavor: str) -> EpochBoundary:
    if not training:
        return EpochBoundary.ANEW
    return EpochBoundary.JOINED if flavor == "tf_keras" else EpochBoundary.SHORT
