"""Steps that no dataset's loop gives a batch: of those that are called, or written out in a loop, a worker takes every
n-th. What the script reads of the others' is what this worker's last one gave."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.replica.evaluating import evaluates
from client_shim.replica.steps import Site, loop_at_work


@dataclass
class _Calls:
    number: int = -1  # of the last one
    output: tuple[int, Any] | None = None  # of this worker's last one, with the rows of its batch


class Turns:
    """`begin` is called before every step, `count` is told of the batch of those that are this worker's."""

    def __init__(self, rank: int, size: int, begin: Callable[[], None], count: Callable[[Any], None]) -> None:
        self._rank, self._size = rank, size
        self._begin, self._count = begin, count
        self.calling = ""  # "mine", "others": of a step function that is being called
        self.kind = ""  # and which of its owner's calls that is
        self.around: Site | None = None  # the loop in which steps are taken in turn
        self._by_hand = ""  # as `calling`, of the step that is written out in that loop
        self.applied = 0  # updates by optimizers, also those of others' steps, which have no effect
        self._calls: weakref.WeakKeyDictionary[Any, dict[str, _Calls]] = weakref.WeakKeyDictionary()
        self._applying: weakref.WeakSet[Any] = weakref.WeakSet()  # functions

    def now(self) -> str:
        """Whose step is under way: "mine", "others'", or "" for none that is taken in turn."""
        if self.calling or not self._by_hand or not self.running():
            return self.calling
        return self._by_hand

    def running(self) -> bool:
        """Is the loop on the stack?"""
        return self.around is not None and self.around.running()

    def in_step(self) -> bool:
        """Of a loop within the loop, an evaluation's, the step is none."""
        if self.calling or self.around is None:
            return bool(self.calling)
        site = loop_at_work()
        return site == self.around or (site is not None and not evaluates(self.around))

    def is_mine(self, number: int) -> bool:
        return number % self._size == self._rank

    def call(self, owner: Any, given: Any, run: Callable[[], Any], kind: str = "") -> Any:
        """Call `run` when it is this worker's turn; else what it gave last, which the script may read.

        `owner`: the tf.function, or the model. `kind`: which of the model's calls. `given`: holds the batch; None where
        `run` counts it itself.
        """
        calls = self._calls_of(owner, kind)
        calls.number += 1
        mine, rows = self.is_mine(calls.number), rows_of(given)
        self._begin()
        self.around, self._by_hand = loop_at_work(), ""
        if not mine and calls.output is not None:
            return _as_of(rows, *calls.output)
        self.calling, self.kind = "mine" if mine else "others", kind
        if mine and given is not None:
            self._count(rows)
        try:
            output = run()
        finally:
            self.calling = self.kind = ""
        calls.output = rows, output
        return output

    def forget(self, owner: Any, kind: str) -> None:
        """The next of these calls is run in any case: what the last one gave is no answer to it."""
        self._calls_of(owner, kind).output = None

    def number(self, owner: Any, kind: str) -> int:
        """How many such calls there have been, less one."""
        return self._calls_of(owner, kind).number

    def go_on_from(self, owner: Any, kind: str, number: int) -> None:
        """As if so many had been: workers may have left a loop of them at different ones."""
        self._calls_of(owner, kind).number = number

    def _calls_of(self, owner: Any, kind: str) -> _Calls:
        return self._calls.setdefault(owner, {}).setdefault(kind, _Calls())

    def begin(self, loop: Site, *, mine: bool) -> None:
        """A step that is written out in `loop`."""
        self._begin()
        self.around, self._by_hand = loop, "mine" if mine else "others"

    def leave(self) -> None:
        """The loop is over."""
        self.around, self._by_hand = None, ""

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
    shapes: list[Any] = [getattr(leaf, "shape", ()) for leaf in tf.nest.flatten(given)]
    return next((int(s[0]) for s in shapes if len(s) and s[0] is not None), 0)


def _as_of(rows: int, before: int, output: Any) -> Any:
    """What a step gave for a batch of `before` rows, as long as one of `rows` rows would make it."""

    def one(leaf: Any) -> Any:
        fits = tf.is_tensor(leaf) and bool(leaf.shape.rank) and leaf.shape[0] == before and rows != before
        return tf.gather(leaf, tf.range(rows) % before) if fits else leaf

    return tf.nest.map_structure(one, output)
