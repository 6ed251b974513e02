"""The number of row orders that the script's shuffled datasets have drawn.

A seeded shuffle draws another order for each iterator. So the order of a `fit` depends on the iterators before it: a
look at a batch, `adapt`, or an earlier `fit`. Workers make an earlier `fit`'s iterators in its place; the script's own
dataset is owed them, and gets them when the script reads it again.

Validation data that share the shuffle draw orders between the epochs, so the client draws both. So does it draw all
validation data of which each iterator reads other rows.

Each iterator draws one order where a pipeline has one shuffle and, behind it, only steps that read it once. Another
pipeline that the script has read is drawn by the client; after a `fit` on workers it starts anew, as does one with a
cache of shuffled rows, which keeps the order of the first `fit`.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import api, dataset_ops, iterator_ops
from fdt.data import division
from fdt.data.pipeline import Refused
from fdt.errors import UserError
from fdt.ops import IdentityMap
from fdt.patches import Patch, patched, replace
from fdt.typing import Dataset

MOST = 200  # each worker makes these iterators before its first batch, in some milliseconds each
_READ_ONCE = frozenset(
    "BatchDataset CacheDataset DatasetV1Adapter FilterDataset MapDataset OptionsDataset PaddedBatchDataset "
    "ParallelBatchDataset ParallelMapDataset PrefetchDataset SkipDataset TakeDataset".split()
)


@dataclass
class _Orders:
    """The orders of one shuffle, or the readings of a cache.

    Attributes:
        drawn: By the script's iterators.
        owed: By the iterators that workers made in place of the script's `fit`.
        traced: A tf.function makes iterators, whose number is unknown.
        unknown: Workers drew orders in place of the script's `fit`, whose number is unknown.
    """

    drawn: int = 0
    owed: int = 0
    traced: bool = False
    unknown: bool = False

    def draw(self, *, eagerly: bool) -> None:
        """Count one iterator."""
        self.drawn += 1
        self.traced |= not eagerly

    def owe(self, count: int) -> None:
        """Add `count` iterators that workers made."""
        self.owed += count

    def settle(self) -> int:
        """Return the number of orders that are owed, which is 0 from now on."""
        count, self.owed = self.owed, 0
        return count


_OF: IdentityMap[_Orders] = IdentityMap()
_ACTIVE: list[bool] = []  # not empty while the script's iterators are counted
_GUARDS: "list[ShuffleGuard]" = []  # of the dataset that a `fit` trains on now


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Count the orders within the context."""
    if _ACTIVE:
        yield
        return
    with patched([Patch(iterator_ops.OwnedIterator, "__init__", _made)]), contextlib.ExitStack() as stack:
        replace(stack, dataset_ops.DatasetV2, "reduce", _counting(dataset_ops.DatasetV2.reduce))
        _ACTIVE.append(True)
        stack.callback(_ACTIVE.pop)
        yield


def drawn(dataset: Dataset) -> int:
    """Return how many orders the shuffle of `dataset` has drawn; 0 if a shuffle has no seed, so that no order repeats.

    Raises:
        Refused: The script has read the dataset before, and workers cannot go on where it stopped.
    """
    stages = stages_of(dataset)
    shuffles = [stage for stage in stages if _reshuffles(stage)]
    number = max((_of(shuffle).drawn + _of(shuffle).owed for shuffle in shuffles), default=0)
    if not number or not _ACTIVE or not all(map(is_seeded, shuffles)):
        return 0
    if any(_of(shuffle).traced for shuffle in shuffles):
        raise Refused("a tf.function of the script reads its shuffled rows an unknown number of times")
    if not _is_read_once(stages):
        raise Refused("the script has read it before, and it has several shuffles, or steps that may read rows again")
    if number > MOST:
        raise Refused(f"its shuffle has drawn {number:,} orders, which every worker would have to draw again")
    if any(_of(cache).drawn for cache in _caches(stages)):
        raise Refused("the script has read its cache, which may hold one of the orders that it drew")
    return number


def owe(dataset: Dataset, count: int) -> None:
    """Note that workers made `count` iterators of `dataset` which the script's `fit` makes on one machine."""
    stages = stages_of(dataset)
    if not _ACTIVE or _caches(stages):  # a cache keeps the order of the first `fit`
        return
    if _is_read_once(stages):
        _of(next(filter(_reshuffles, stages))).owe(count)
        return
    for shuffle in _seeded_shuffles(dataset):
        _of(shuffle).unknown = True


def starts_anew(dataset: Dataset) -> bool:
    """Return whether workers read the rows in the orders of an earlier `fit`, where one machine draws further ones."""
    return any(_of(shuffle).unknown for shuffle in _seeded_shuffles(dataset))


def is_reshuffled(dataset: Dataset) -> bool:
    """Return whether each iterator of `dataset` draws an order that is the same in each run of the script."""
    return bool(_seeded_shuffles(dataset))


def is_cached(dataset: Dataset) -> bool:
    """Return whether a cache keeps rows of `dataset` behind a shuffle."""
    stages = stages_of(dataset)
    return any(map(_reshuffles, stages)) and bool(_caches(stages))


def functions_of(dataset: Dataset) -> list[Any]:
    """Return TensorFlow's wrappers of the functions of a pipeline."""
    return [function for stage in stages_of(dataset) for function in stage._functions()]


def share_a_shuffle(first: Dataset, second: Dataset) -> bool:
    """Return whether iterators of one dataset change the order of the other, in the same way in each run."""
    shuffles = _seeded_shuffles(first)
    return any(stage is shuffle for stage in _seeded_shuffles(second) for shuffle in shuffles)


@dataclass
class ShuffleGuard:
    """Iterators of the script that draw from the shuffles of the data that `fit` trains on.

    Attributes:
        shuffles: The seeded shuffles of the training data.
        thread: The only thread that counts; None: every one.
        place: File and line of the first iterator; "": there was none.
        training: An epoch is under way, in which an iterator is refused at once.
    """

    shuffles: list[Any]
    thread: int | None = None
    place: str = ""
    training: bool = False

    def begin_epoch(self) -> None:
        """Refuse iterators from now on."""
        self.training = True

    def end_epoch(self) -> None:
        """Note iterators again."""
        self.training = False

    def stop(self) -> None:
        """Note no iterator any more."""
        self.shuffles.clear()

    def note(self, stages: Sequence[Any]) -> None:
        """Note an iterator over `stages` if one is such a shuffle. Raises UserError while an epoch trains."""
        if self.thread not in (None, threading.get_ident()):
            return
        if any(stage is shuffle for stage in stages for shuffle in self.shuffles):
            self.place = self.place or where()
            if self.training:
                raise UserError(
                    "a callback must not read within an epoch the shuffled rows that fit trains on. Received: an "
                    f"iterator at {self.place}; read them in on_train_end, or use --capture replica"
                )


@contextlib.contextmanager
def trained_on(dataset: Dataset, *, in_this_thread: bool = False) -> Iterator[ShuffleGuard]:
    """Note within the context the script's iterators that change the order of `dataset`.

    Args:
        dataset: The training data.
        in_this_thread: Iterators of other threads do not count.
    """
    _GUARDS.append(guard := ShuffleGuard(_seeded_shuffles(dataset), threading.get_ident() if in_this_thread else None))
    try:
        yield guard
    finally:
        _GUARDS.remove(guard)


def _made(original: Any, iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
    if dataset is not None:
        _draw(dataset)
    original(iterator, dataset, *args, **kwargs)


def _counting(original: Any) -> Any:
    """Return `reduce` that is counted. AutoGraph stays as it is, for the function that `reduce` is given."""

    @functools.wraps(original)
    def reduce(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        _draw(dataset)
        return original(dataset, *args, **kwargs)

    return api.autograph_artifact(reduce)


def _draw(dataset: Any) -> None:
    """Count one iterator of `dataset`, after those that are owed."""
    eagerly = tf.executing_eagerly()
    stages = stages_of(dataset)
    for guard in _GUARDS:
        guard.note(stages)
    for stage in filter(division.state_of, stages):
        for _ in range(_of(stage).settle() if eagerly else 0):
            iter(stage)
        _of(stage).draw(eagerly=eagerly)


def _of(stage: Any) -> _Orders:
    orders = _OF.get(stage)
    if orders is None:
        _OF.put(stage, orders := _Orders())
    return orders


def stages_of(dataset: Any) -> list[Any]:
    """Return the datasets of a pipeline, from its end to its start; one that is read twice twice."""
    stages, waiting = [], [dataset]
    while waiting:
        stages.append(stage := waiting.pop())
        waiting += [stage._dataset] if isinstance(stage, dataset_ops.DatasetV1Adapter) else stage._inputs()
    return stages


def _reshuffles(stage: Any) -> bool:
    """Return whether the dataset is a shuffle that draws an order for each iterator."""
    return division.state_of(stage) == "shuffle"


def _seeded_shuffles(dataset: Dataset) -> list[Any]:
    return [stage for stage in stages_of(dataset) if _reshuffles(stage) and is_seeded(stage)]


def is_seeded(shuffle: Any) -> bool:
    """Return whether a shuffle has a seed of its own or of the script."""
    return any(int(tf.get_static_value(seed) or 0) for seed in (shuffle._seed, shuffle._seed2))


def _is_read_once(stages: Sequence[Any]) -> bool:
    """Return whether the pipeline has one shuffle, seeded, and each of its iterators reads it once."""
    found = [number for number, stage in enumerate(stages) if _reshuffles(stage)]
    if len(found) != 1 or not is_seeded(stages[found[0]]):
        return False
    return all(type(stage).__name__.removeprefix("_") in _READ_ONCE for stage in stages[: found[0]])


def _caches(stages: Sequence[Any]) -> list[Any]:
    """Return the caches of shuffled rows in a pipeline with one shuffle."""
    first = next((number for number, stage in enumerate(stages) if _reshuffles(stage)), 0)
    return [stage for stage in stages[:first] if division.state_of(stage) == "cache"]
