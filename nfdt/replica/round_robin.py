"""Round-robin steps: every worker runs the whole loop, draws every batch and computes every n-th step.

A *region* is the code that a worker skips in another's turn: a tape with its gradients (skippable_regions.py), or the
call of a tf.function that takes gradients, of `train_on_batch`, or of the function that `fit` calls for a batch. The
script gets the result of the worker's own last run in its place. All other code runs every time, so counters count as
on one machine.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from client_shim.replica.evaluating import evaluates
from client_shim.replica.steps import Site, loop_at_work, where
from fdt.errors import CaptureError
from nfdt.replica.variants import Variants

UNLIKE = (
    "the workers have taken different steps before {where}: a result of a step, such as its loss, decided whether "
    "gradients were applied. Let one tf.function compute, decide and apply, or use hfdt run"
)


class Advanceable(Protocol):
    """An object that a region advances: an iterator or a counter."""

    def move(self, by: int) -> None:
        """Advance by `by` steps."""


class Counter(Advanceable, Protocol):
    """An optimizer's `iterations`."""

    def now(self) -> int:
        """Return the current count."""


@dataclass
class Region:
    """State of one region."""

    number: int = -1  # number of the step, counted from the last synchronisation
    sync: int = 0  # number of synchronisations before it
    since: int = 0  # number of updates at its start
    applies: bool = False  # whether it applies gradients itself
    updates: int = 1  # most updates of one of its steps, as of a GAN's two optimizers
    runs: int = 0
    shapes: Any = None  # shapes of the batch that gave `values`
    values: Any = None
    alike: bool | None = None  # whether result shapes are independent of the batch's; None: unknown
    moved: list[tuple[Advanceable, int]] = field(default_factory=list)  # its side effects

    def begin(self, first: int, sync: int, applied: int, *, given_up: bool) -> None:
        """Set the step number: `first` after synchronisation `sync`, else the next one.

        Micro-batches whose gradients are accumulated are one step. `applied`: number of updates so far.
        """
        if self.number < 0 or self.sync != sync:
            self.number, self.sync = first, sync
        elif given_up or applied > self.since:
            self.number += 1
        self.since = applied

    def follow(self, before: "Region", applied: int) -> None:
        """Take the step number of `before`, the same code's region for other objects, unless it was applied."""
        if before is not self and applied == before.since:
            self.number, self.sync, self.since = before.number, before.sync, before.since

    def keep(self, shapes: Any, values: Any, applied: int, moved: list[tuple[Advanceable, int]]) -> None:
        """Store the result of a run. `shapes`: of its batch."""
        if self.runs and shapes != self.shapes:
            self.alike = self.alike is not False and _shapes(values) == _shapes(self.values)
        self.shapes, self.values, self.moved = shapes, values, moved
        self.applies = applied > self.since
        self.runs += 1

    def forget(self) -> None:
        """Discard the last result: the next call runs, in any turn."""
        self.runs = 0


class RoundRobin:
    """Decides which steps this rank computes.

    `begin` is called before every step and returns whether every rank computes it; `count` is called with its own
    batches.
    """

    def __init__(self, rank: int, size: int, begin: Callable[[], bool], count: Callable[[Any], None]) -> None:
        self._rank, self._size = rank, size
        self._begin, self._count = begin, count
        self.calling = ""  # "mine" or "others": owner of the step function that runs now
        self.kind = ""  # the kind of its call
        self.around: Site | None = None  # the loop in which steps are taken in turn
        self._whose = ""  # as `calling`, for the last region that started in it
        self._open: Region | None = None  # the region that began last, where its gradients are applied behind it
        self.applied = 0  # number of updates, including those of others' steps, which have no effect
        self._regions: weakref.WeakKeyDictionary[Any, dict[Any, Variants[Region]]] = weakref.WeakKeyDictionary()
        self._applying: weakref.WeakSet[Any] = weakref.WeakSet()  # functions
        self._before: dict[Counter, int] = {}  # counts at the start of the running region
        self._effects: dict[Any, Sequence[tuple[Advanceable, int]]] = {}  # by function that it called
        self._begun = self._risen = 0  # regions since the synchronisation, and those of another step than before
        self._syncs = self._first = self._next = 0  # `_first`, `_next`: step numbers since the synchronisation

    def count_update(self) -> None:
        """Count an update of this step, or of another's."""
        self.applied += 1

    def as_one(self, update: Callable[[], Any]) -> Any:
        """Call an update that is counted already, and counts others: a loss scale's."""
        before = self.applied
        output = update()
        self.applied = before
        return output

    def now(self) -> str:
        """Return the owner of the running step: "mine", "others", or "" if no step is taken in turn."""
        return self.calling or (self._whose if self._whose and self.running() else "")

    def running(self) -> bool:
        """Return whether the loop is on the stack."""
        return self.around is not None and self.around.outermost.running()

    def in_step(self) -> bool:
        """Return whether a step runs. A nested loop, such as an evaluation, has no step."""
        if self.calling or self.around is None:
            return bool(self.calling)
        site = loop_at_work()
        return site == self.around or (site is not None and not evaluates(self.around))

    def unapplied(self) -> bool:
        """Return whether a step has begun and not all of its gradients have been applied."""
        return self._open is not None and self.applied - self._open.since < self._open.updates

    # -- regions ---------------------------------------------------------------------------------------------------
    def region(self, owner: Any, key: Any, given: Mapping[Any, Any] | None = None, *, numbers: bool = False) -> Region:
        """Return the region of `owner` and `key` for the objects in `given`; `numbers`: as for `Variants.of`."""
        variants = self._regions.setdefault(owner, {}).setdefault(key, Variants(Region))
        before, found = variants.last, variants.of(given or {}, numbers=numbers)
        if before is not None:
            found.follow(before, self.applied)
        return found

    def begin(self, region: Region, loop: Site | None, shapes: Any, *, ready: bool, given_up: bool = False) -> bool:
        """Return whether to run `region`; in another's turn it is skipped if its last result fits the batch.

        Args:
            region: The region.
            loop: The loop around it.
            shapes: Shapes of the batch.
            ready: Whether it may be skipped at all.
            given_up: Whether its last run ended early.
        """
        before = region.number
        if self._open is not None:
            self._open.updates = max(self._open.updates, self.applied - self._open.since)
        self._open = region
        region.begin(self._first, self._syncs, self.applied, given_up=given_up)
        self._begun, self._risen = self._begun + 1, self._risen + (region.number != before)
        self._next = max(self._next, region.number + 1)
        mine = region.number % self._size == self._rank
        self._before, self._effects = {}, {}
        by_all = self._begin()
        self.around, self._whose = loop, "mine" if mine else "others"
        if mine or by_all or not ready or not (region.shapes == shapes or region.alike or _is_plain(region.values)):
            return True
        self.applied += region.applies
        self._open = None if region.applies else region
        for moved, by in region.moved:
            moved.move(by)
        return False

    def keep(self, region: Region, shapes: Any, values: Any) -> None:
        """Store the result of a run."""
        counted = ((counter, counter.now() - before) for counter, before in self._before.items())
        region.keep(shapes, values, self.applied, [*counted, *itertools.chain(*self._effects.values())])
        self._open = None if region.applies else region

    def moves(self, counter: Counter) -> None:
        """Record that the running region is about to advance `counter`."""
        if counter not in self._before:
            self._before[counter] = counter.now()

    def called(self, function: Any, effects: Sequence[tuple[Advanceable, int]]) -> None:
        """Record the side effects of a function that the running region called."""
        self._effects[function] = effects

    def call(self, owner: Any, given: Any, run: Callable[[], Any], kind: str = "", *, trains: bool = True) -> Any:
        """Call `run` in this worker's turn; else return its last result, which the script may read.

        Args:
            owner: The tf.function or the model.
            given: Arguments (args, kwargs) that contain the batch; None if `run` counts it itself.
            run: The call.
            kind: Which of the model's calls it is.
            trains: Whether it applies gradients itself.
        """
        args, kwargs = given or ((), {})
        region, shapes = self.region(owner, kind, {**dict(enumerate(args)), **kwargs}, numbers=True), _shapes(given)
        if not self.begin(region, loop_at_work(), shapes, ready=region.runs > 0):
            return region.values
        with self._called(kind):
            if self.calling == "mine" and given is not None:
                self._count(rows_of(given))
            output = run()
        if trains and self.applied == region.since:  # traced earlier, so its update was not counted
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
        """Discard the last result of these calls: every worker runs the next one."""
        self.region(owner, kind).forget()

    def at_apply(self, optimizer: Any) -> str:
        """Return the owner of an update that no region precedes: every worker computed it, and one applies it."""
        loop = loop_at_work(called=True) if tf.executing_eagerly() else None
        if loop is None or not loop.trains:
            return ""
        self.begin(self.region(optimizer, "apply"), loop, None, ready=False)
        whose, self._whose = self._whose, ""  # metrics beside it receive each batch on every worker
        return whose

    # -- synchronisation -------------------------------------------------------------------------------------------
    def progress(self) -> list[int]:
        """Return the number of the next step, and how many regions and other steps than before have begun."""
        return [self._next, self._begun, self._risen]

    def met(self, progress: Sequence[int]) -> None:
        """Continue with the next step of rank 0's `progress` on all workers, which may have left a loop earlier.

        Raises:
            CaptureError: As many regions as on rank 0 were other steps, so batches were trained on twice or never.
        """
        number, begun, risen = progress
        if begun == self._begun and risen != self._risen:
            raise CaptureError(UNLIKE.format(where=where()))
        self._begun = self._risen = 0
        self._syncs += 1
        self._first = self._next = number

    def leave(self) -> None:
        """Forget the loop, which has ended."""
        self.around, self._whose, self._open = None, "", None

    def watched(self, function: Any, run: Callable[[], Any]) -> Any:
        """Call a tf.function that may apply the gradients of an eager step; its tracing shows whether it does."""
        before = self.applied
        output = run()
        if self.applied > before:
            self._applying.add(function)
            self.applied = before + 1  # as its later calls, which are not traced
        elif function in self._applying:
            self.applied += 1
        return output


def rows_of(given: Any) -> int:
    """Return the number of samples in a batch: the rows of its first array."""
    return next((int(s[0]) for s in _shapes(given) if s and s[0] is not None), 0)


def _shapes(values: Any) -> list[Any]:
    """Return the shapes of arrays, and None for other values."""
    shapes = (getattr(leaf, "shape", None) for leaf in tf.nest.flatten(values))
    return [tuple(shape) if isinstance(shape, (tuple, tf.TensorShape)) else None for shape in shapes]


def _is_plain(values: Any) -> bool:
    """Return whether the values are plain numbers, whose shape is independent of the batch."""
    if isinstance(values, dict):
        return all(map(_is_plain, values.values()))
    if isinstance(values, tuple):
        return all(map(_is_plain, values))
    numbers = (int, float, bool, str, type(None), np.ndarray, np.generic, tf.Tensor)
    return isinstance(values, numbers) and not getattr(values, "ndim", 0)
