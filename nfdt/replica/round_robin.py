"""Steps that workers take in turn: every worker runs the whole loop, draws every batch and computes every n-th step.

A *region* is what is left out in another's turn: a tape with its gradients (skippable_regions.py), the call of a
tf.function that
takes gradients, of `train_on_batch`, of what `fit` calls for a batch. In its place the script has what the worker's
own last one gave. All else runs every time, so counters count as alone.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from client_shim.replica.evaluating import evaluates
from client_shim.replica.steps import Site, loop_at_work


class Advanceable(Protocol):
    """What a region moves on: an iterator, a count."""

    def move(self, by: int) -> None: ...


class Counter(Advanceable, Protocol):
    """An optimizer's `iterations`."""

    def now(self) -> int: ...


@dataclass
class Region:
    number: int = -1  # of the step, counted on from where all met
    sync: int = 0  # how many there had been
    since: int = 0  # updates when it began
    applies: bool = False  # does it apply gradients itself?
    runs: int = 0
    shapes: Any = None  # of its batch, when it gave `values`
    values: Any = None
    alike: bool | None = None  # do the shapes of what it gives stay, whatever the batch's? None: not seen yet
    moved: list[tuple[Advanceable, int]] = field(default_factory=list)  # by what it does besides computing


class RoundRobin:
    """`begin` is called before every step, `count` is told of the batch of those that are this worker's."""

    def __init__(self, rank: int, size: int, begin: Callable[[], None], count: Callable[[Any], None]) -> None:
        self._rank, self._size = rank, size
        self._begin, self._count = begin, count
        self.calling = ""  # "mine", "others": of a step function that is being called
        self.kind = ""  # and which of its owner's calls that is
        self.around: Site | None = None  # the loop in which steps are taken in turn
        self._whose = ""  # as `calling`, of the last region that began in it
        self.applied = 0  # updates by optimizers, also those of others' steps, which have no effect
        self._regions: weakref.WeakKeyDictionary[Any, dict[Any, Region]] = weakref.WeakKeyDictionary()
        self._applying: weakref.WeakSet[Any] = weakref.WeakSet()  # functions
        self._before: dict[Counter, int] = {}  # of the region that runs, when it began
        self._effects: dict[Any, Sequence[tuple[Advanceable, int]]] = {}  # of the functions that it called
        self._syncs = self._first = self._next = 0  # the steps' numbers: of the first since all met, and after all

    def now(self) -> str:
        """Whose step is under way: "mine", "others'", or "" for none that is taken in turn."""
        return self.calling or (self._whose if self._whose and self.running() else "")

    def running(self) -> bool:
        """Is the loop on the stack?"""
        return self.around is not None and self.around.outermost.running()

    def in_step(self) -> bool:
        """Of a loop within the loop, an evaluation's, the step is none."""
        if self.calling or self.around is None:
            return bool(self.calling)
        site = loop_at_work()
        return site == self.around or (site is not None and not evaluates(self.around))

    # -- regions ---------------------------------------------------------------------------------------------------
    def region(self, owner: Any, key: Any) -> Region:
        return self._regions.setdefault(owner, {}).setdefault(key, Region())

    def begin(self, region: Region, loop: Site | None, shapes: Any, *, ready: bool, given_up: bool = False) -> bool:
        """Is `region` to run? In another's turn it is left out where what it gave last fits `shapes`, the batch's.

        `ready`: may it be left out at all? `given_up`: it was not run to its end when it ran last.
        """
        self._count_on(region, given_up)
        mine = region.number % self._size == self._rank
        region.since, self._before, self._effects = self.applied, {}, {}
        self._begin()
        self.around, self._whose = loop, "mine" if mine else "others"
        if mine or not ready or not (region.shapes == shapes or region.alike or _is_plain(region.values)):
            return True
        self.applied += region.applies
        for moved, by in region.moved:
            moved.move(by)
        return False

    def _count_on(self, region: Region, given_up: bool) -> None:
        """Micro-batches whose gradients are added up are one step."""
        if region.number < 0 or region.sync != self._syncs:
            region.number, region.sync = self._first, self._syncs
        elif given_up or self.applied > region.since:
            region.number += 1
        self._next = max(self._next, region.number + 1)

    def keep(self, region: Region, shapes: Any, values: Any) -> None:
        """It has run."""
        if region.runs and shapes != region.shapes:
            region.alike = region.alike is not False and _shapes(values) == _shapes(region.values)
        region.shapes, region.values = shapes, values
        region.applies = self.applied > region.since
        counted = ((counter, counter.now() - before) for counter, before in self._before.items())
        region.moved = [*counted, *itertools.chain(*self._effects.values())]
        region.runs += 1

    def moves(self, counter: Counter) -> None:
        """The region that runs is about to move it on."""
        if counter not in self._before:
            self._before[counter] = counter.now()

    def called(self, function: Any, effects: Sequence[tuple[Advanceable, int]]) -> None:
        """The region that runs has called it."""
        self._effects[function] = effects

    def call(self, owner: Any, given: Any, run: Callable[[], Any], kind: str = "", *, trains: bool = True) -> Any:
        """Call `run` when it is this worker's turn; else what it gave last, which the script may read.

        `owner`: the tf.function, or the model. `kind`: which of the model's calls. `given`: holds the batch; None where
        `run` counts it itself. `trains`: does it apply gradients itself?
        """
        region, shapes = self.region(owner, kind), _shapes(given)
        if not self.begin(region, loop_at_work(), shapes, ready=region.runs > 0):
            return region.values
        with self._called(kind):
            if self.calling == "mine" and given is not None:
                self._count(rows_of(given))
            output = run()
        if trains and self.applied == region.since:  # it was traced before
            self.applied += 1
        self.keep(region, shapes, output)
        return output

    @contextlib.contextmanager
    def _called(self, kind: str) -> Iterator[None]:
        self.calling, self.kind = self._whose, kind
        try:
            yield
        finally:
            self.calling = self.kind = ""

    def forget(self, owner: Any, kind: str) -> None:
        """The next of these calls is run in any case: what the last one gave is no answer to it."""
        self.region(owner, kind).runs = 0

    def at_apply(self, optimizer: Any) -> str:
        """Whose an update is that no region came before: every worker has computed it, and one is to apply it."""
        loop = loop_at_work(called=True) if tf.executing_eagerly() else None
        if loop is None or not loop.trains:
            return ""
        self.begin(self.region(optimizer, "apply"), loop, None, ready=False)
        whose, self._whose = self._whose, ""  # what metrics see beside it is each batch, on every worker
        return whose

    # -- meetings --------------------------------------------------------------------------------------------------
    def next_number(self) -> int:
        return self._next

    def met(self, number: int) -> None:
        """All go on with step `number`: they may have left a loop at different ones."""
        self._syncs += 1
        self._first = self._next = number

    def leave(self) -> None:
        """The loop is over."""
        self.around, self._whose = None, ""

    def watched(self, function: Any, run: Callable[[], Any]) -> Any:
        """Call a tf.function that may apply what an eager step took: that is seen while it is traced."""
        before = self.applied
        output = run()
        if self.applied > before:
            self._applying.add(function)
        elif function in self._applying:
            self.applied += 1
        return output


def rows_of(given: Any) -> int:
    """Samples of a batch: the rows of its first array."""
    return next((int(s[0]) for s in _shapes(given) if s and s[0] is not None), 0)


def _shapes(values: Any) -> list[Any]:
    """Of arrays; what is none has no shape."""
    shapes = (getattr(leaf, "shape", None) for leaf in tf.nest.flatten(values))
    return [tuple(shape) if isinstance(shape, (tuple, tf.TensorShape)) else None for shape in shapes]


def _is_plain(values: Any) -> bool:
    """Numbers, which are as long for any batch."""
    if isinstance(values, dict):
        return all(map(_is_plain, values.values()))
    if isinstance(values, tuple):
        return all(map(_is_plain, values))
    numbers = (int, float, bool, str, type(None), np.ndarray, np.generic, tf.Tensor)
    return isinstance(values, numbers) and not getattr(values, "ndim", 0)
