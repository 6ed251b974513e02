"""Eager steps that are taken in turn: what client_shim/replica/skippable_regions.py asks.

A worker takes every n-th step, from the tape to its gradients. Which step that is counts on when gradients were
applied, so micro-batches whose gradients are added up are one worker's.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import loop_at_work, script_frames
from nfdt.replica.draws import Draws, apart
from nfdt.replica.round_robin import Region, RoundRobin

_BATCH = 64  # a longer list is no batch's arrays


class SkippableRegions:
    """`count`: told of the samples of this worker's steps. `meet`: called when a loop of such steps is over."""

    def __init__(self, turns: RoundRobin, count: Callable[[int], None], meet: Callable[[], None]) -> None:
        self._turns, self._count, self._meet = turns, count, meet
        self._running: int | None = None  # the region
        self._drawing: set[int] = (
            set()
        )  # regions that draw random numbers, as all workers must: the next are theirs all
        self._shapes: Any = None  # of what it has now
        self._drawn: Any = None  # what it draws
        self._apart = contextlib.ExitStack()  # while it runs
        self.rows = 0  # of the step's batch
        self._anew = True  # is the next tape the first of its step? A GAN has several
        self._depth = 0

    def inside(self) -> bool:
        """Is a tape open, or its region not at its end?"""
        return self._depth > 0 or (self._running is not None and self._turns.running())

    def mine(
        self, key: int, names: Mapping[str, Any], reads: tuple[str, ...], cut: Callable[[], Any] | None = None
    ) -> bool:
        """Is it to run? Also in another's turn when there is nothing yet to take its place that fits.

        `cut`: as in client_shim/replica/skippable_regions.py.
        """
        if self._depth:
            return True
        given_up, self._running = self._running == key, None  # by `continue`, before it was kept
        self._apart.close()
        site = None if not tf.executing_eagerly() or self._turns.calling else loop_at_work()
        if site is None or not site.trains:
            return True
        region, held = self._region(key), _held(names, reads)
        self._shapes = None if cut is None else _shapes(held, cut)
        ready = self._shapes is not None and region.runs > 1 and key not in self._drawing
        runs = self._turns.begin(region, site, self._shapes, ready=ready, given_up=given_up)
        self._running, self.rows = key if runs else None, 0
        if runs:
            self._drawn = Draws(held.values())
            apart(f"{key} {region.number}", self._apart)
        return runs

    def keep(self, key: int, values: dict[str, Any]) -> None:
        """It has run."""
        if self._running != key:
            return
        self._apart.close()
        region = self._region(key)
        self._turns.keep(region, self._shapes, values)
        if region.runs > 1 and self._drawn.drawn():  # the first may build the model
            self._drawing.add(key)
        if not self.rows:
            self._found(0)
        self._running = None
        self._anew = self._anew or "" in values  # its function returns with it

    def last(self, key: int) -> Mapping[str, Any]:
        values: Mapping[str, Any] = self._region(key).values
        return values

    def _region(self, key: int) -> Region:
        return self._turns.region(self, key)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A tape; those within another belong to its step."""
        if not self._depth and self._running is None:
            self.rows = 0
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def part(self, value: Any) -> Any:
        """The first array that the tape reads says how many samples there are."""
        if not self.rows and self._depth and tf.executing_eagerly():
            first = next(iter(tf.nest.flatten(value)), None) if isinstance(value, (list, tuple, dict)) else value
            if isinstance(first, (np.ndarray, tf.Tensor)) and not isinstance(first, tf.Variable) and len(first.shape):
                self._found(int(first.shape[0]))
        return value

    def _found(self, rows: int) -> None:
        self.rows = rows
        if self._running is not None and self._anew and self._turns.now() == "mine":
            self._count(rows)
            self._anew = False

    array = part

    def whole(self, value: Any) -> Any:
        """A function returns that has taken a step."""
        self.done()
        return value

    def done(self) -> None:
        """The next tape is another step's; that it begins it says itself."""
        self._anew = self._anew or not self._depth

    def left(self, first: int) -> None:
        """A loop of the script is over: if it was that of the last steps, all workers meet."""
        if self._turns.around is None or not tf.executing_eagerly():
            return
        loop = self._turns.around.outermost
        frame = next(script_frames(), None)
        over = frame is not None and loop.code is frame.f_code and loop.first == first
        if over or not loop.running():
            self._apart.close()
            self._turns.leave()
            self._meet()


def _held(names: Mapping[str, Any], reads: tuple[str, ...]) -> dict[str, Any]:
    """What the region reads, also from its module."""
    frame = next(script_frames(), None)
    known = {**(frame.f_globals if frame is not None else {}), **names}
    return {name: known[name] for name in reads if name in known}


def _shapes(held: Mapping[str, Any], cut: Callable[[], Any]) -> Any:
    """Of arrays that it reads, and of what it slices of them; None where that cannot be made before it."""
    try:
        return {name: _shape(value) for name, value in held.items()}, [_rows(value) for value in cut()]
    except Exception:  # a name that a comprehension within binds, or the script's own
        return None


def _shape(value: Any) -> Any:
    """Of an array, or of those in a batch; what is none always fits."""
    if isinstance(value, (tuple, dict)) or (isinstance(value, list) and len(value) < _BATCH):
        return [_shape(each) for each in (value.values() if isinstance(value, dict) else value)]
    return tuple(value.shape) if isinstance(value, (np.ndarray, tf.Tensor)) and value.ndim else None


def _rows(value: Any) -> Any:
    """Of anything that is sliced: an array, a table, a list."""
    return tuple(value.shape) if hasattr(value, "shape") else len(value)
