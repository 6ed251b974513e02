"""The non-finite guard of `--on-nan`: a step in which a rank's gradient has NaN or infinity is skipped or ends the run.

A rank tests its gradients before they are summed. A vector with an element for each rank is part of the same exchange.
So all ranks learn within the step which gradients are not finite, and none of them changes a weight.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import assign, is_loss_scaled, tensor_variable
from fdt.ops import all_finite
from fdt.typing import Tensor, Variable
from hfdt.worker.exchange import Apply
from hfdt.worker.step_context import StepTerms


class Guard:
    """The guard of the training steps of one model on one rank.

    Args:
        trainable: The model with its variables.
        counted: A variable whose first element is the number of samples in the epoch.
        terms: The terms of the job's steps.
        skips: Skip and count such steps; `check` then raises nothing.
    """

    def __init__(self, trainable: Any, counted: Variable, terms: StepTerms, *, skips: bool) -> None:
        seeds = {id(tensor_variable(v)) for v in trainable.seeds}  # a skipped step has used its random numbers
        # A train_step of the script may also assign weights, and may update some of them before a bad gradient appears.
        moved = [] if terms.own_step else [*trainable.trainable, *trainable.optimizer]
        changed = [tensor_variable(v) for v in [*trainable.non_trainable, *trainable.metrics, *moved]]
        self._changed: list[Variable] = [v for v in changed if id(v) not in seeds]
        self._counted, self._terms, self._size, self._skips = counted, terms, terms.comm.size, skips
        self._step, self._skipped = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))  # of the epoch
        self._left_out = tf.Variable(False, trainable=False)  # whether this step, or a part of it, was skipped
        # The number of the first skipped step, then a flag for each rank and one for the sum.
        self._first = tf.Variable([0] * (self._size + 2), dtype=tf.int64, trainable=False)

    # -- inside a step ---------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Wrap a training step: undo its changes if it was skipped."""
        before = [tf.identity(v) for v in self._changed]
        samples = self._counted[0]
        self._step.assign_add(1)
        self._left_out.assign(False)
        yield

        def undo() -> Tensor:
            assign(self._changed, before)
            self._counted.assign(tf.concat([[samples], self._counted[1:]], 0))
            return tf.constant(0)

        tf.cond(self._left_out, undo, _nothing)

    def mine(self, rank: int, given: Sequence[Tensor]) -> Tensor:
        """Return this rank's flags: float32 of shape (size,), 1 at `rank` where the `given` tensors are not finite."""
        bad = tf.logical_not(all_finite(given))
        return tf.one_hot(rank, self._size) * tf.cast(bad, tf.float32)

    def whose(self, flags: Tensor, added: Sequence[Tensor] = ()) -> Tensor:
        """Return bool of shape (size + 1,): the ranks whose gradient is not finite.

        `flags`: the sum over ranks of `mine`. The last element is true where all ranks' gradients are finite but the
        sum `added` is not.
        """
        ranks = flags > 0
        overflow = tf.logical_not(all_finite(added)) if added else tf.constant(False)
        return tf.concat([ranks, [overflow & ~tf.reduce_any(ranks)]], 0)

    def unless(self, whose: Tensor, update: Callable[[], Any]) -> None:
        """Run `update` unless an element of `whose` is true; otherwise skip the step."""

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
        """Replace an optimizer's own apply in a run with one rank."""
        dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
        self.unless(self.whose(self.mine(0, dense)), lambda: original(list(gradients), list(variables)))

    # -- around steps ----------------------------------------------------------------------------------------------
    def begin(self, step: int, skipped: int) -> None:
        """Start an epoch, or resume one after `step` steps of which `skipped` were skipped."""
        self._step.assign(step)
        self._skipped.assign(skipped)
        self._first.assign(tf.zeros_like(self._first))

    @property
    def skipped(self) -> int:
        """The number of skipped steps in the current epoch."""
        return int(self._skipped)

    def check(self, epoch: int) -> None:
        """Raise UserError for a skipped step of `epoch` (from 0), unless the guard is to skip."""
        if self._skips or not int(self._first[0]):
            return
        step, *whose = (int(n) for n in self._first.numpy())
        ranks = [rank for rank in range(self._size) if whose[rank]]
        owners = f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        if not ranks:
            owners = f"the sum of all workers' compressed gradients (--compress {self._terms.compression.name})"
        raise UserError(
            f"NaN or infinity in the gradients of {owners} in step {step} of epoch {epoch + 1}; "
            "--on-nan skip leaves such steps out"
        )


def asked(trainable: Any, options: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the --on-nan option of a job ("" for none), and a line for the user where it is not used."""
    on_nan = options.get("on_nan", "")
    if on_nan and any(map(is_loss_scaled, trainable.flavor.optimizers(trainable.model))):
        return "", ["--on-nan is not used: the LossScaleOptimizer leaves out steps that overflow by itself"]
    return on_nan, []


def check_optimizers(rule: Any, trainable: Any) -> None:
    """Raise UserError where an algorithm needs every gradient, and an optimizer of the model skips some."""
    needs_all = getattr(rule, "begin", None) is not None  # of RoundAlgorithm
    if needs_all and any(map(is_loss_scaled, trainable.flavor.optimizers(trainable.model))):
        raise UserError("dane and admm need every gradient, and a LossScaleOptimizer skips some; use another one")


def _nothing() -> Tensor:
    return tf.constant(0)
