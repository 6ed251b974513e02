"""Rows that a step makes by itself, as many as a batch has: a generator's noise, labels of ones and zeros.

They are made whole, the same on every rank, and cut as the batch is. Left whole they would outnumber a rank's part of
the batch, and a mean over both would weigh them more than alone. Only where the script itself asks, inside a step.
"""

import sys
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import of_script
from fdt import patches
from fdt.patches import Patch
from hfdt.replica import kinds
from hfdt.replica.places import Places
from hfdt.replica.probe import Trials

_GENERATED = "__autograph_generated"


class Rows:
    """`largest`: batch of the step at hand so far; as many rows are a batch's."""

    def __init__(self, places: Places, trials: Trials, rank: int, size: int) -> None:
        self._places, self._trials, self._rank, self._ranks = places, trials, rank, size
        self.largest = 0
        self._of: dict[Any, int] = {}

    def given(self, step: Any, rows: int) -> None:
        """A step function or a loop is given a batch of so many rows."""
        self.largest = self._of[step] = max(self._of.get(step, 0), rows)

    def knows(self, step: Any) -> bool:
        """Has it been given a batch? One row then is what a division left over, not somebody's scalar."""
        return step in self._of

    def patches_of_tensorflow(self) -> list[Patch]:
        random = [Patch(tf.random, name, self.made) for name in ("normal", "uniform", "truncated_normal")]
        return [*random, Patch(tf, "ones", self.made), Patch(tf, "zeros", self.made)]

    def patches_of_keras(self) -> list[Patch]:
        import keras

        random = [Patch(keras.random, name, self.made) for name in ("normal", "uniform", "truncated_normal")]
        return [*random, Patch(keras.ops, "ones", self.made), Patch(keras.ops, "zeros", self.made)]

    def made(self, original: Any, shape: Any = (), *args: Any, **kwargs: Any) -> Any:
        """In place of a function whose first argument is a shape."""
        whole = original(shape, *args, **kwargs)
        trying = self._trials.recorded is not None
        if not (trying or self._places.divided()) or not _rows_are(shape, self.largest) or not _asked_by_script():
            return whole
        if trying:
            return whole[slice(*self._trials.rows)]
        low, high = (self.largest * part // self._ranks for part in (self._rank, self._rank + 1))
        part = whole[low : max(high, low + 1)]
        if tf.executing_eagerly():
            kinds.enter(part, (high - low, self.largest))
        return part


def _rows_are(shape: Any, rows: int) -> bool:
    if isinstance(shape, (list, tuple, tf.TensorShape)) and len(shape) and rows > 1:
        return isinstance(shape[0], int) and shape[0] == rows
    return False


def _asked_by_script() -> bool:
    """Is the first frame that is neither ours nor TensorFlow's wrapping the script's, or AutoGraph's copy of it?"""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if _GENERATED in path or of_script(path):
            return True
        if "/autograph/" not in path and path != patches.__file__:
            return False
        frame = frame.f_back
    return False
