"""Eager steps on data that the script slices, draws or holds whole: what client_shim/replica/regions.py asks.

A worker runs the whole loop and takes every n-th step of it, from the tape to its gradients. Which step that is counts
on when gradients were applied, so micro-batches whose gradients are added up are one worker's.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import loop_at_work, script_frames
from nfdt.replica.draws import Draws
from nfdt.replica.turns import Turns


@dataclass
class _Region:
    number: int = -1  # of the step
    since: int = 0  # updates when it began
    applies: bool = False  # does it apply gradients itself?
    left_out: bool = False
    runs: int = 0
    draws: bool = False  # random numbers, as all workers must: the next permutation is to be theirs all
    shapes: Any = None  # what it had when it gave its values
    values: dict[str, Any] = field(default_factory=dict)


class ByHand:
    """`given`: is the batch at hand a dataset's? `count`: told of the samples of this worker's steps. `meet`: called
    when a loop of such steps is over."""

    def __init__(
        self, turns: Turns, given: Callable[[], bool], count: Callable[[int], None], meet: Callable[[], None]
    ) -> None:
        self._turns, self._given, self._count, self._meet = turns, given, count, meet
        self._regions: dict[int, _Region] = {}
        self._running: int | None = None  # the region
        self._shapes: Any = None  # of what it has now
        self._drawn: Any = None  # what it draws
        self._rows = 0
        self._anew = True  # is the next tape the first of its step? A GAN has several
        self._depth = 0

    def mine(
        self, key: int, names: Mapping[str, Any], reads: tuple[str, ...], cut: Callable[[], Any] | None = None
    ) -> bool:
        """Is it to run? Also in another's turn when there is nothing yet to take its place, or batches get shorter.

        `cut`: as in client_shim/replica/regions.py.
        """
        if self._depth:
            return True
        stopped, self._running = self._running == key, None  # by `continue`, before it was kept
        site = None if not tf.executing_eagerly() or self._turns.calling else loop_at_work()
        if site is None or not site.trains or self._given():
            return True
        region = self._regions.setdefault(key, _Region())
        passed = stopped or self._turns.applied > region.since or (region.left_out and region.applies)
        region.number += region.number < 0 or passed
        mine = self._turns.is_mine(region.number)
        held = _held(names, reads)
        self._shapes = None if cut is None else _shapes(held, cut)
        fits = self._shapes is not None and self._shapes == region.shapes
        region.left_out = not mine and fits and region.runs > 1 and not region.draws
        region.since = self._turns.applied
        self._turns.begin(site, mine=mine)
        self._running, self._rows = None if region.left_out else key, 0
        self._drawn = None if region.left_out else Draws(held.values())
        return not region.left_out

    def keep(self, key: int, values: dict[str, Any]) -> None:
        """It has run."""
        if self._running != key:
            return
        region = self._regions[key]
        region.values, region.shapes = values, self._shapes
        region.applies = self._turns.applied > region.since
        region.runs += 1
        region.draws = region.draws or (region.runs > 1 and self._drawn.drawn())  # the first may build the model
        if not self._rows:
            self._found(0)
        self._running = None
        self._anew = self._anew or "" in values  # its function returns with it

    def last(self, key: int) -> Mapping[str, Any]:
        return self._regions[key].values

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A tape; those within another belong to its step."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def part(self, value: Any) -> Any:
        """The first array that the tape reads says how many samples there are."""
        if self._running is not None and not self._rows and self._depth:
            first = next(iter(tf.nest.flatten(value)), None) if isinstance(value, (list, tuple, dict)) else value
            if isinstance(first, (np.ndarray, tf.Tensor)) and not isinstance(first, tf.Variable) and len(first.shape):
                self._found(int(first.shape[0]))
        return value

    def _found(self, rows: int) -> None:
        self._rows = rows
        if self._anew and self._turns.now() == "mine":
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
        around = self._turns.around
        if around is None or not tf.executing_eagerly():
            return
        frame = next(script_frames(), None)
        over = frame is not None and around.code is frame.f_code and around.first == first
        if over or not around.running():
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
    """Of arrays; what is no array always fits."""
    return tuple(value.shape) if isinstance(value, (np.ndarray, tf.Tensor)) else None


def _rows(value: Any) -> Any:
    """Of anything that is sliced: an array, a table, a list."""
    return tuple(value.shape) if hasattr(value, "shape") else len(value)
