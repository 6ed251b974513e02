"""Where a rank stands in a script: in a training step on its part of a batch, or anywhere else.

Patched Keras functions ask `hfdt.step.current()`, as they do in a worker's `fit`. Here the answer depends on how the
batch came in: as the arguments of a step function (for the length of the call), or by the iterator of a loop (for as
long as that loop is on the stack). Inside a graph the share of the batch at hand is read from a variable, as a trace is
used for batches of any size.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import Site
from fdt.beside import Beside
from fdt.patches import Patch, patched
from hfdt import step as steps
from hfdt.replica import kinds
from hfdt.replica.batches import Share
from hfdt.step import Reading, Step, Tensor, Terms


class ReplicaStep(Step):
    """A step whose reading is found by what the tape is asked for, not by a probe."""

    of_any_graph = False  # its share is known, not read from the variable

    def __init__(self, terms: Terms, share: Tensor, default: Reading = Reading.MEAN) -> None:
        super().__init__(terms, share)
        self.reading = self.default = default
        self.applies = 0  # optimizers' steps so far
        self.by_hand = False  # of a batch that the script sliced
        self.over: Tensor | None = None  # my part of what the loss is a mean over, where not of the samples

    def weight(self, dtype: Any) -> Tensor:
        if self.reading is Reading.STEP_SUM:
            return tf.cast(self.mine > 0, dtype)
        return self.share(dtype) if self.over is None else tf.cast(self.over, dtype)

    def over_share(self, value: Tensor) -> Tensor:
        """As every step's. What is corrected so is to be weighed by share, as a mean is."""
        corrected = super().over_share(value)
        kinds.become_mean(corrected)
        return corrected


class _Here(threading.local):
    """What one thread is at. `stack`: entered by hand, None for no step; `loop`: what was last given a part."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.loop: tuple[Site, ReplicaStep] | None = None


class Places:
    """`share`: int64 [samples of mine, samples of the batch at hand], for graphs."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.reading = Reading.MEAN  # of the step function that is called
        self._here = _Here()
        self._graphs: Beside[ReplicaStep] = Beside()
        self._entered: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs that a batch came into
        self._share: Any = None
        self._told: Share | None = None  # what `share` holds, where that is known
        self._graphs_tell = False  # it is assigned to within graphs

    @property
    def share(self) -> Any:
        if self._share is None:
            with tf.init_scope():
                self._share = tf.Variable([1, 1], dtype=tf.int64, trainable=False)
        return self._share

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """hfdt.step asks us where a rank stands."""
        with patched([Patch(steps, "current", self._current), Patch(steps, "entered", self._enter)]):
            yield

    def divided(self) -> bool:
        """Is a part of a batch at hand?"""
        here = self._here
        if here.stack:
            return here.stack[-1] is not None
        if here.loop is not None and not here.loop[0].running():
            here.loop = None
        return here.loop is not None or self._in_entered_graph()

    def entered(self) -> bool:
        """Inside a step, or in our own code?"""
        return bool(self._here.stack)

    @contextlib.contextmanager
    def part(self, share: Share) -> Iterator[ReplicaStep]:
        """Within, a batch of which this rank has `share` is at hand."""
        step = ReplicaStep(self.terms, share)
        self._tell(share)
        with self._enter(None, step):
            yield step

    def _tell(self, share: Share) -> None:
        """Put it where graphs read it. Most batches are as large as the one before, and an assignment has its price."""
        if share != self._told or self._graphs_tell:
            self.share.assign(share)
        self._told = share

    def part_of_loop(self, site: Site, share: Tensor, *, by_hand: bool = False) -> None:
        """The loop at `site` has been given its part of a batch."""
        self.share.assign(share)
        self._told = None
        step = ReplicaStep(self.terms, share)
        step.by_hand = by_hand
        self._here.loop = site, step

    def part_of_graph(self, share: Tensor) -> None:
        """The graph that is being traced is given its part of a batch, here."""
        self._entered.add(tf.compat.v1.get_default_graph())
        self._graphs_tell = True
        self.share.assign(share)

    def share_now(self) -> Share:
        """Of the batch at hand."""
        mine, total = self.share.numpy()
        return int(mine), int(total)

    def leave_loop(self) -> None:
        self._here.loop = None

    def whole(self, counts: bool) -> ReplicaStep:
        """A step that every rank took on the whole batch; `counts` is true on the rank that is believed."""
        step = ReplicaStep(self.terms, tf.constant([int(counts), 1], tf.int64))
        step.of_any_graph = True
        return step

    def _current(self, original: Any = None) -> ReplicaStep | None:
        if not self.divided():
            return None
        here = self._here
        if here.stack and here.stack[-1].of_any_graph:
            return here.stack[-1]  # type: ignore[no-any-return]
        if not tf.executing_eagerly():
            return self._of_graph()
        if here.stack:
            return here.stack[-1]  # type: ignore[no-any-return]
        return here.loop[1] if here.loop is not None else None

    @contextlib.contextmanager
    def _enter(self, original: Any, step: Any) -> Iterator[None]:
        self._here.stack.append(step)
        try:
            yield
        finally:
            self._here.stack.pop()

    def _of_graph(self) -> ReplicaStep:
        graph = tf.compat.v1.get_default_graph()
        step = self._graphs.get(graph)
        if step is None:
            step = ReplicaStep(self.terms, self.share.read_value(), self.reading)
            self._graphs.put(graph, step)
        return step

    def _in_entered_graph(self) -> bool:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        while graph is not None:
            if graph in self._entered:
                return True
            graph = getattr(graph, "outer_graph", None)
        return False
