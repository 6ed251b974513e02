"""Batches that an eager step slices by hand: cut where its tape reads them (client_shim/replica/rewriting.py).

The first array with rows that a step reads says how many its batch has; arrays of as many rows are cut, all others,
weights and gradients, stay whole. From then on the step is one of a loop that was given its part of a batch.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import Site, loop_at_work, where
from fdt.data import epochs as slicing
from fdt.errors import CaptureError
from hfdt import step as steps
from hfdt.replica import batches, kinds
from hfdt.replica.algebra import Kind
from hfdt.replica.batches import Share
from hfdt.replica.constants import Rows
from hfdt.replica.places import Places
from hfdt.replica.values import placed

MISFIT = (
    "arrays are divided by their first axis, the batch's rows. Received: a step that fails on its part of {rows} rows, "
    "at {where}: {error}; --allow-replicated has every rank do all of that work"
)


class ByHand:
    """`count`: told of every batch's share."""

    def __init__(self, places: Places, rows: Rows, rank: int, size: int, count: Callable[[Share], None]) -> None:
        self._places, self._rows_made, self._rank, self._size, self._count = places, rows, rank, size, count
        self._site: Site | None = None  # the loop that trains on what is cut
        self._rows = 0  # of the batch at hand
        self._mine = slice(0)  # of those
        self._depth = 0
        self._cut: dict[Any, tuple[Any, Any]] = {}  # by identity: array, part

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A tape; those within another belong to its step."""
        if not self._depth and tf.executing_eagerly() and not self._places.entered():
            self._begin()
        self._depth += 1
        try:
            yield
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            if not self._rows:
                raise
            text = str(error).strip().split("\n")[0]
            raise CaptureError(MISFIT.format(rows=self._rows, where=where(), error=text)) from error
        finally:
            self._depth -= 1

    def _begin(self) -> None:
        self.done()
        if self._site is not None:  # a batch whose gradients are still to be applied; here comes another
            self._rows = 0
            self._cut.clear()
            return
        site = loop_at_work()
        if site is not None and site.trains and not self._places.divided():
            self._site = site

    def part(self, value: Any) -> Any:
        if self._site is None or not tf.executing_eagerly() or self._places.entered():
            return value
        if not self._site.running():
            self.done()
            return value
        return self._parts(value)

    def array(self, value: Any) -> Any:
        """`part`, of arrays only."""
        return self.part(value) if isinstance(value, (tf.Tensor, np.ndarray)) else value

    def whole(self, value: Any) -> Any:
        """Rows are put end to end; the step is over if it has applied its gradients."""
        step = steps.current() if self._rows else None
        if step is not None and tf.executing_eagerly():
            value = tf.nest.map_structure(lambda leaf: self._gathered(leaf, step), value)
        self.done()
        return value

    def done(self) -> None:
        """What was cut is of no more use, unless its gradients are still to be applied by the function's caller."""
        if self._depth or self._site is None:
            return
        step: Any = steps.current() if self._rows else None
        if step is None or step.applies:
            self._places.leave_loop()
            self._site, self._rows = None, 0
            self._cut.clear()
            kinds.imply_nothing()

    def _parts(self, value: Any) -> Any:
        if isinstance(value, (tf.Tensor, np.ndarray)) and not isinstance(value, tf.Variable):
            return self._part(value)
        if type(value) in (list, tuple) and value and _are_data(value):
            parts = type(value)(self._parts(each) for each in value)
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        if type(value) is dict and value and _are_data(value.values()):
            return {key: self._parts(each) for key, each in value.items()}
        return value

    def _part(self, array: Any) -> Any:
        """Behind the tape only what it has read: there may be other arrays as long as the batch."""
        kept = self._cut.get(_identity(array))
        if kept is not None:
            return kept[1]
        if not self._depth or not _is_data(array) or not len(array.shape) or not self._begun(int(array.shape[0])):
            return array
        with kinds.unfollowed():
            part = array[self._mine]
        if not isinstance(array, np.ndarray):
            kinds.enter(part, self._places.share_now())
        self._cut[_identity(array)] = array, part
        self._cut[_identity(part)] = part, part
        return part

    def _begun(self, rows: int) -> bool:
        """Is a batch of so many rows at hand? The step's first one is from now on."""
        assert self._site is not None
        if self._rows:
            return rows == self._rows
        if rows < 2 and not self._rows_made.knows(self._site):
            return False
        self._rows = rows
        part = slicing.cut(np.array([0]), np.array([rows]), self._rank, self._size)
        mine, total = (int(n) for n in part.share[0])
        self._mine = slice(int(part.low[0]), int(part.high[0]))
        self._places.part_of_loop(self._site, tf.constant([mine, total], tf.int64), by_hand=True)
        kinds.imply((mine, total), self._mine.stop - self._mine.start)
        self._rows_made.given(self._site, rows)
        self._count((mine, total))
        return True

    def _gathered(self, leaf: Any, step: Any) -> Any:
        mark = kinds.mark_of(leaf) if tf.is_tensor(leaf) else None
        rows = self._mine.stop - self._mine.start
        if mark is None or mark.kind is not Kind.ROWS or not leaf.shape.rank or leaf.shape[0] != rows:
            return leaf
        with steps.entered(step), kinds.unfollowed():
            return step.sum([placed(leaf, step, *mark.share)], "rows")[0]


def _identity(array: Any) -> Any:
    """`x[2:4]` is a new array of NumPy's each time."""
    if not isinstance(array, np.ndarray):
        return id(array)
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def _is_data(value: Any) -> bool:
    """Not what is known to be a part already, a weight or a gradient."""
    if isinstance(value, np.ndarray):
        return True
    return batches.is_array(value) and kinds.mark_of(value) is None and not kinds.is_whole(value)


def _are_data(values: Any) -> bool:
    return all(isinstance(value, (tf.Tensor, np.ndarray)) and _is_data(value) for value in values)
