"""The gradient exchange of a training step: it replaces the optimizer's apply by one step of a StepAlgorithm.

With `jit_compile`, the step is compiled in two halves, since XLA cannot compile Horovod's operations:

    [forward, gradient, metrics]  ->  exchange  ->  [optimizer's apply]

The first half is Keras's own train_step, whose apply is deferred (Deferred).
"""

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt import tensors as packing
from fdt.keras.variables import tensor_variable
from fdt.ops import nbytes
from fdt.typing import Tensor, Variable
from hfdt.algorithm import BlockAlgorithm, RoundAlgorithm, StepAlgorithm, Tree
from hfdt.exactness import assigned_state
from hfdt.worker import step_context as steps
from hfdt.worker.sparse_gradients import Gather, summed_by_index
from hfdt.worker.step_context import StepContext, StepTerms

Apply = Callable[[Tree, list[Any]], Any]


@dataclass
class Deferred:
    """An optimizer step that was not applied yet: its gradients, its variables, and Keras's own apply."""

    gradient: Tree
    variables: list[Any]
    apply: Apply


class StepGroup:
    """The ReduceGroup of an algorithm inside one step: all ranks. `key` identifies the variables of the gradients."""

    def __init__(self, step: StepContext, key: Hashable = None, ids: Sequence[int] = ()) -> None:
        self._step, self._key, self._ids = step, key, ids
        self.rank, self.size = step.comm.rank, step.comm.size
        self.whose: Tensor = None  # with a guard, after `mean`: which ranks' gradients are not finite

    @classmethod
    def of(cls, step: StepContext, variables: list[Any]) -> "StepGroup":
        """Return the group of a step that updates `variables`."""
        ids = tuple(id(tensor_variable(v)) for v in variables)
        return cls(step, ids, ids)

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        """Sum the ranks' weighted tensors (StepContext.weight), and the state that the forward pass assigned.

        Dense tensors leave in buckets, each as soon as the backward pass has made its tensors. The last bucket also
        has the rows of IndexedSlices, the assigned state and the non-finite flags, which need all gradients.
        """
        step = self._step
        slices = [t for t in tensors if isinstance(t, tf.IndexedSlices)]
        gather = Gather(step, slices, self._alike(tensors)) if slices else None
        dense = [t for t in tensors if t is not None and not isinstance(t, tf.IndexedSlices)]
        rows = gather.values() if gather else []
        weighed = [step.weigh(t, step.weight(t.dtype)) for t in [*dense, *rows]]
        touched = step.take_touched()
        compression = step.terms.compression
        wire, decoded = compression.begin(weighed, len(dense), self._key) if compression else (weighed, None)
        indices = gather.indices() if gather else []
        guard, moved = step.terms.guard, assigned_state.weigh_touched(step, touched)
        flags = [guard.mine(self.rank, weighed)] if guard else []  # before a compressor that may overflow
        last = [*wire[len(dense) :], *indices, *moved, *flags]
        added = step.timed([*wire, *last], lambda: self._exchanged(wire[: len(dense)], last))
        whole, behind = added[: len(wire)], added[len(wire) :]
        if decoded is not None:
            whole = decoded(whole, lambda more: step.timed(more, lambda: step.sum(more, "gradient")))
        if guard:
            self.whose = guard.whose(behind.pop(), whole if compression else ())
        assigned_state.write(touched, behind[len(indices) :])
        return _in_place(tensors, whole, gather.whole(behind[: len(indices)]) if gather else [])

    def _alike(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return, for each of IndexedSlices, whether all ranks have the same indices."""
        ids = self._ids if len(self._ids) == len(tensors) else [0] * len(tensors)
        return [
            i in self._step.terms.alike for i, t in zip(ids, tensors, strict=True) if isinstance(t, tf.IndexedSlices)
        ]

    def _exchanged(self, dense: list[Tensor], last: list[Tensor]) -> list[Tensor]:
        """Sum `dense` in buckets, and `last` with the last of them."""
        *order, end = buckets(dense, self._step.terms.bucket_bytes)
        sums = [self._step.sum([dense[i] for i in bucket], "gradient") for bucket in order]
        sums.append(self._step.sum([*(dense[i] for i in end), *last], "gradient"))
        return by_position([*order, end], sums) + sums[-1][len(end) :]

    def targets(self, gradient: Tree, variables: list[Any]) -> tuple[Tree, list[Any]]:
        """Return the gradients and the variables that the optimizer updates."""
        return gradient, variables

    def updated(self, variables: list[Any]) -> None:
        """Complete the update of `variables`."""


class StepLocal:
    """A rank's gradient and the script's optimizer, as an algorithm sees them (hfdt/algorithm.py, Local)."""

    def __init__(self, deferred: Deferred, group: StepGroup, guard: Any) -> None:
        self.gradient = deferred.gradient
        self._deferred, self._group, self._guard = deferred, group, guard
        self.updated: Tree = []

    def update(self, gradient: Tree) -> Tree:
        targets = self._group.targets(gradient, self._deferred.variables)
        with steps.entered(None):
            if self._guard is None:
                self._deferred.apply(*targets)
            else:
                self._guard.unless(self._group.whose, lambda: self._deferred.apply(*targets))
            self._group.updated(self._deferred.variables)
        self.updated = [tensor_variable(v) for v in self._deferred.variables]
        return self.updated


GroupOf = Callable[[StepContext, list[Any]], StepGroup]  # of a step and the variables of its gradients


class GradientExchange:
    """The runner of a StepAlgorithm where Keras applies gradients. Its `apply` is passed to `Flavor.replace_apply`.

    `group` makes the ReduceGroup of a step.
    """

    def __init__(self, rule: StepAlgorithm, group: GroupOf | None = None) -> None:
        self._rule, self._group = rule, group or StepGroup.of
        self._states: dict[tuple[int, ...], list[Variable]] = {}  # the ids of an optimizer's variables -> state

    def apply(self, original: Apply, gradients: Sequence[Tensor], variables: Sequence[Any]) -> None:
        """Exchange gradients in place of the outermost `apply`, before its test for finite values: ranks agree."""
        step = steps.current()
        if step is None:
            original(list(gradients), list(variables))
            return
        deferred = Deferred(list(gradients), list(variables), original)
        slices = [v for g, v in zip(gradients, variables, strict=True) if isinstance(g, tf.IndexedSlices)]
        step.terms.sparse.update(id(tensor_variable(v)) for v in slices)
        if step.deferred is not None:
            step.deferred.append(deferred)
        else:
            self.run(step, deferred)

    def run(self, step: StepContext, deferred: Deferred) -> None:
        """Run one step of the algorithm."""
        params: Tree = [tensor_variable(v) for v in deferred.variables]
        group = self._group(step, deferred.variables)
        local = StepLocal(deferred, group, step.terms.guard)
        state = self._started(params, group)
        after, new_state = self._rule.step([tf.convert_to_tensor(v) for v in state], params, local, group)
        if after is not local.updated:
            assigned_state.write(params, after)
        assigned_state.write(state, new_state)

    def _started(self, params: Tree, group: StepGroup) -> list[Variable]:
        key = tuple(map(id, params))
        if key not in self._states:
            with tf.init_scope():
                self._states[key] = [tf.Variable(value, trainable=False) for value in self._rule.init(params, group)]
        return self._states[key]


def buckets(tensors: Sequence[Tensor], least: int) -> list[list[int]]:
    """Divide the positions of `tensors` into buckets, in the order in which the backward pass makes gradients.

    That is the reverse of the variables' order: the last layers' come first. It is the same on every rank.

    Args:
        tensors: A gradient for each variable.
        least: A bucket is full when it has this many bytes. 0: all are one bucket.

    Returns:
        One bucket or more. Only a single one is empty.
    """
    last = len(tensors) - 1
    return [[last - i for i in bucket] for bucket in packing.buckets(map(nbytes, reversed(tensors)), least)]


def by_position(order: list[list[int]], found: list[list[Tensor]]) -> list[Tensor]:
    """Return the buckets' tensors by position."""
    by = {i: t for bucket, tensors in zip(order, found, strict=True) for i, t in zip(bucket, tensors, strict=False)}
    return [by[i] for i in range(len(by))]


def _in_place(tensors: Sequence[Tensor], added: list[Tensor], indices: list[Tensor]) -> Tree:
    """Return `added` (dense tensors, then values of slices) in the order of `tensors`; None stays None."""
    slices = [t for t in tensors if isinstance(t, tf.IndexedSlices)]
    dense = iter(added[: len(added) - len(slices)])
    whole = iter(
        summed_by_index(tf.IndexedSlices(v, i, t.dense_shape), t)
        for v, i, t in zip(added[len(added) - len(slices) :], indices, slices, strict=True)
    )
    return [None if t is None else next(whole if isinstance(t, tf.IndexedSlices) else dense) for t in tensors]


def decide_split(model: Any, rule: Any, terms: StepTerms, asked: AbstractSet[str]) -> tuple[bool, list[str]]:
    """Return whether XLA compiles steps in halves, and lines for the user. `asked`: Probing.asked."""
    if not model.jit_compile or model.run_eagerly or isinstance(rule, RoundAlgorithm):
        return False, []
    reason = _why_not(rule, terms, asked)
    return not reason, [f"jit_compile is off: {reason}"] if reason else []


def _why_not(rule: Any, terms: StepTerms, asked: AbstractSet[str]) -> str:
    if isinstance(rule, BlockAlgorithm):
        return "the algorithm computes each block of a batch alone"
    if not terms.own_step:
        return "the model has a train_step of its own"
    if "batchnorm" in asked:
        return "BatchNorm's statistics are summed over ranks (not with --batch-norm local)"
    if asked & {"mask", "loss"}:
        return "a mask or weighted mean is summed over ranks"
    return ""


def run_split(train_step: Any, batch: Any, share: Tensor, step: StepContext, exchange: GradientExchange) -> Any:
    """Run one train_step in compiled halves. Raises ExchangeInCompiled where the first half needs other ranks."""
    put_off: list[Deferred] = []
    touched: dict[int, Any] = {}

    @tf.function(jit_compile=True, autograph=False)
    def first(batch: Any, share: Tensor) -> Any:
        inner = StepContext(step.terms, share, compiled=True, deferred=put_off)
        with steps.entered(inner):
            logs = train_step(batch)
        touched.update(inner.touched)
        return [g for g in put_off[-1].gradient if g is not None], logs

    gradient, logs = first(batch, share)
    step.touched.update(touched)
    deferred = put_off[-1]

    def second(gradient: Tree, variables: list[Any]) -> None:
        places = [g is not None for g in gradient]
        compiled = tf.function(
            lambda dense: deferred.apply(_spread(dense, places), variables), jit_compile=True, autograph=False
        )
        compiled([g for g in gradient if g is not None])

    present = [g is not None for g in deferred.gradient]
    exchange.run(step, Deferred(_spread(gradient, present), deferred.variables, second))
    return logs


def _spread(dense: Tree, present: list[bool]) -> Tree:
    """Insert None where `present` is False."""
    left = iter(dense)
    return [next(left) if is_present else None for is_present in present]
