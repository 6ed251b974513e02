"""The number of orders that the script has drawn of its shuffled datasets.

A seeded shuffle draws another order for each iterator. So the order of a `fit` depends on the iterators before it: a
look at a batch, `adapt`, or an earlier `fit`. Workers make an earlier `fit`'s iterators in its place; the script's own
dataset is owed them, and gets them when the script reads it again. A cache that holds a shuffle's order takes no more
orders of it once it is full, so what is behind it is owed nothing: a second `fit` shuffles as the first did.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import dataset_ops, iterator_ops
from fdt.data.pipeline import Refused
from fdt.ops import IdentityMap
from fdt.patches import Patch, patched
from fdt.typing import Dataset

MOST = 1000  # a worker makes these iterators before its first batch, each in some milliseconds


@dataclass
class _Orders:
    """The orders of one shuffle, or the readings of a cache.

    Attributes:
        drawn: By the script's iterators.
        owed: By the iterators that workers made in place of the script's `fit`.
        traced: A tf.function makes iterators, whose number is unknown.
    """

    drawn: int = 0
    owed: int = 0
    traced: bool = False

    def draw(self, *, eagerly: bool) -> None:
        """Count one iterator."""
        self.drawn += 1
        self.traced |= not eagerly

    def owe(self, count: int) -> None:
        """Add `count` to the orders that are owed; negative: they have been drawn."""
        self.owed += count


_OF: IdentityMap[_Orders] = IdentityMap()


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Count the orders within the context."""
    patches = [Patch(iterator_ops.OwnedIterator, "__init__", _made), Patch(dataset_ops.DatasetV2, "reduce", _reduced)]
    with patched(patches):
        yield


def drawn(dataset: Dataset) -> int:
    """Return the number of orders that each seeded shuffle of `dataset` has drawn.

    Raises:
        Refused: The number is unknown, or too large, or not the same for all, or a cache may hold one of the orders.
    """
    orders = [_of(shuffle) for shuffle in _shuffles(dataset)]
    numbers = {each.drawn + each.owed for each in orders} or {0}
    if any(each.traced for each in orders):
        raise Refused("a tf.function of the script reads its shuffled rows, in a number of orders that is unknown")
    if len(numbers) > 1:
        raise Refused("the script has read a part of it, so its shuffles have drawn different numbers of orders")
    (number,) = numbers
    if number > MOST:
        raise Refused(f"its shuffle has drawn {number:,} orders, which every worker would have to draw again")
    if any(_of(cache).drawn for cache in _caches(dataset)):
        raise Refused("the script has read its cache, which may hold one of the orders that it drew")
    return number


def owe(dataset: Dataset, count: int) -> None:
    """Note that workers made `count` iterators of `dataset` which the script's `fit` makes on one machine."""
    for shuffle in () if any(True for _ in _caches(dataset)) else _shuffles(dataset):
        _of(shuffle).owe(count)


def _made(original: Any, iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
    if dataset is not None:
        _draw(dataset)
    original(iterator, dataset, *args, **kwargs)


def _reduced(original: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    _draw(dataset)
    return original(dataset, *args, **kwargs)


def _draw(dataset: Any) -> None:
    """Count one iterator of `dataset`, after those that are owed."""
    eagerly = tf.executing_eagerly()
    for shuffle in _shuffles(dataset) if eagerly else ():
        _pay(shuffle)
    for each in (*_shuffles(dataset), *_caches(dataset)):
        _of(each).draw(eagerly=eagerly)


def _pay(shuffle: Any) -> None:
    """Make the iterators that a shuffle is owed. Those around it, which come first, make iterators of it too."""
    count = _of(shuffle).owed
    for each in _shuffles(shuffle):
        _of(each).owe(-min(count, _of(each).owed))
    for _ in range(count):
        iter(shuffle)


def _of(shuffle: Any) -> _Orders:
    orders = _OF.get(shuffle)
    if orders is None:
        _OF.put(shuffle, orders := _Orders())
    return orders


def _shuffles(dataset: Any) -> Iterator[Any]:
    """Yield the seeded shuffles that draw an order for each iterator, from the end of the pipeline to its start."""
    if type(dataset).__name__ == "_ShuffleDataset" and dataset._reshuffle_each_iteration is not False:
        if any(int(tf.get_static_value(seed) or 0) for seed in (dataset._seed, dataset._seed2)):
            yield dataset
    for source in dataset._inputs():
        yield from _shuffles(source)


def _caches(dataset: Any) -> Iterator[Any]:
    """Yield the caches of rows that a seeded shuffle has put in order."""
    if type(dataset).__name__ == "CacheDataset" and any(True for _ in _shuffles(dataset)):
        yield dataset
    for source in dataset._inputs():
        yield from _caches(source)
