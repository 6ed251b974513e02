"""`--on-nan`: a step in which a rank's gradient holds NaN or infinity is left out on all ranks, or ends the run.

A rank looks at what it gives to the others, before it is added up; a vector with a place for each rank travels in the
same exchange. So all ranks know within the step, alike, whose gradient it was, and none of them moves a weight.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import is_loss_scaled, tensor_variable
from fdt.nonfinite import all_finite
from hfdt.worker.exchange import Apply
from hfdt.worker.step_context import StepTerms, Tensor, Variable


class Guard:
    """Of the training steps of one model on one rank. `counted`: its first number is the epoch's samples.

    `skips`: steps are left out and counted, and `check` finds nothing wrong with them.
    """

    def __init__(self, trainable: Any, counted: Variable, terms: StepTerms, *, skips: bool) -> None:
        seeds = {id(tensor_variable(v)) for v in trainable.seeds}  # a step that is left out has drawn its numbers
        # A train_step of the script's may also assign weights, and move some of them before a bad gradient comes.
        moved = [] if terms.own_step else [*trainable.trainable, *trainable.optimizer]
        changed = [tensor_variable(v) for v in [*trainable.non_trainable, *trainable.metrics, *moved]]
        self._changed: list[Variable] = [v for v in changed if id(v) not in seeds]
        self._counted, self._size, self._skips = counted, terms.comm.size, skips
        self._step, self._skipped = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))  # of the epoch
        self._left_out = tf.Variable(False, trainable=False)  # this step, or a part of it
        # Of the first step that was left out its number, and whose gradient it was.
        self._first = tf.Variable([0] * (self._size + 2), dtype=tf.int64, trainable=False)

    # -- inside a step ---------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A training step: what it has changed is undone where it is left out."""
        before = [tf.identity(v) for v in self._changed]
        samples = self._counted[0]
        self._step.assign_add(1)
        self._left_out.assign(False)
        yield

        def undo() -> Tensor:
            for variable, value in zip(self._changed, before, strict=True):
                variable.assign(value)
            self._counted.assign(tf.concat([[samples], self._counted[1:]], 0))
            return tf.constant(0)

        tf.cond(self._left_out, undo, _nothing)

    def mine(self, rank: int, given: Sequence[Tensor]) -> Tensor:
        """What this rank says of the `given` tensors: float32 (size), 1 in its own place where they are not finite."""
        bad = tf.logical_not(all_finite(given))
        return tf.one_hot(rank, self._size) * tf.cast(bad, tf.float32)

    def whose(self, said: Tensor, added: Sequence[Tensor] = ()) -> Tensor:
        """bool (size + 1): whose gradient is not finite. The last: nobody's, but the sum `added` is not."""
        ranks = said > 0
        overflow = tf.logical_not(all_finite(added)) if added else tf.constant(False)
        return tf.concat([ranks, [overflow & ~tf.reduce_any(ranks)]], 0)

    def unless(self, whose: Tensor, update: Callable[[], Any]) -> None:
        """Run `update`, unless it was somebody's."""

        def leave_out() -> Tensor:
            first = tf.concat([[self._step], tf.cast(whose, tf.int64)], 0)
            self._first.assign(tf.where(self._first[0] > 0, self._first, first))
            self._skipped.assign_add(tf.where(self._left_out, tf.constant(0, tf.int64), tf.constant(1, tf.int64)))
            self._left_out.assign(True)
            return tf.constant(0)

        def go_on() -> Tensor:
            update()
            return tf.constant(0)

        tf.cond(tf.reduce_any(whose), leave_out, go_on)

    def apply(self, original: Apply, gradients: Sequence[Tensor], variables: Sequence[Any]) -> None:
        """In place of an optimizer's own apply, where there is one rank only."""
        dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
        self.unless(self.whose(self.mine(0, dense)), lambda: original(list(gradients), list(variables)))

    # -- around steps ----------------------------------------------------------------------------------------------
    def begin(self, step: int, skipped: int) -> None:
        """An epoch begins, or is taken up after so many steps."""
        self._step.assign(step)
        self._skipped.assign(skipped)
        self._first.assign(tf.zeros_like(self._first))

    @property
    def skipped(self) -> int:
        """Steps of the epoch at hand that were left out."""
        return int(self._skipped)

    def check(self, epoch: int) -> None:
        """Raises UserError for a step of `epoch` (from 0) that was left out, unless that was wanted."""
        if self._skips or not int(self._first[0]):
            return
        step, *whose = (int(n) for n in self._first.numpy())
        ranks = [rank for rank in range(self._size) if whose[rank]]
        who = f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        who = who if ranks else "the sum of all workers' 16-bit floats (--fp16-allreduce)"
        raise UserError(
            f"gradients must be finite. Received: NaN or infinity from {who} in step {step} of epoch {epoch + 1}; "
            "--on-nan skip leaves such steps out"
        )


def asked(trainable: Any, options: Mapping[str, str]) -> tuple[str, list[str]]:
    """What a job's --on-nan asks for, "" for nothing, and a line where it is not used."""
    on_nan = options.get("on_nan", "")
    if on_nan and any(map(is_loss_scaled, trainable.flavor.optimizers(trainable.model))):
        return "", ["--on-nan is not used: the LossScaleOptimizer leaves out steps that overflow by itself"]
    return on_nan, []


def _nothing() -> Tensor:
    return tf.constant(0)
