"""The runner of algorithms whose ranks train alone and exchange parameters once a round (RoundAlgorithm).

Inside a round ranks exchange nothing. A rank's step is Keras's own on its local batch, and values that would need other
ranks are computed from the local batch alone (hfdt/worker/step_context.py, `alone`). The replaced optimizer adds the
gradient of the round's LocalProblem, or sums gradients in a pass that only evaluates them. The start and the end of a
round are plain Python.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.keras.variables import assign, tensor_variable
from fdt.ops import nbytes
from fdt.report import quantity
from fdt.typing import Dataset, Tensor, Variable
from hfdt.algorithm import LocalProblem, RoundAlgorithm, Tree
from hfdt.collectives import Comm
from hfdt.exactness import assigned_state
from hfdt.worker import conjugate_gradients
from hfdt.worker import step_context as steps
from hfdt.worker.exchange import Apply
from hfdt.worker.nonfinite_guard import check_optimizers
from hfdt.worker.progress import OnBatch
from hfdt.worker.step_context import StepContext

Logs = dict[str, float]
Open = Callable[[], Dataset]  # opens the rank's local batches of the current epoch, from the first
Fit = Callable[[Dataset, OnBatch], Logs]


class RoundGroup:
    """The ReduceGroup at the start or end of a round; a rank's weight is its part of the round's samples."""

    def __init__(self, comm: Comm, tally: Variable) -> None:
        self._comm, self._tally = comm, tally
        self.rank, self.size = comm.rank, comm.size
        self.sent_bytes, self.waited_s, self._calls = 0, 0.0, 0

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        mine, total = self._tally.numpy()
        dense = [None if t is None else tf.convert_to_tensor(t) for t in tensors]
        weighed = [_weighed(t, mine / total) for t in dense if t is not None]
        self.sent_bytes += sum(map(nbytes, weighed))
        self._calls += 1
        began = time.perf_counter()
        added = iter(self._comm.sum(weighed, f"hfdt.round.{self._calls}"))
        self.waited_s += time.perf_counter() - began
        return [None if t is None else next(added) for t in dense]

    def begin(self) -> None:
        """Start a round: the names of exchanges repeat in every round."""
        self._calls = 0

    def begin_epoch(self) -> None:
        """Count bytes and seconds from zero."""
        self.sent_bytes, self.waited_s = 0, 0.0


class Rounds:
    """The runner of `rule` over the model of `trainable`.

    `travelling`: variables averaged at a round's end besides parameters. `kept`: variables that a pass which only
    evaluates gradients must restore.
    """

    def __init__(self, rule: RoundAlgorithm, trainable: Any, comm: Comm, travelling: Sequence[Variable]) -> None:
        self.rule, self._model = rule, trainable.model
        check_optimizers(rule, trainable)
        self._params: list[Variable] = [tensor_variable(v) for v in trainable.trainable]
        self._place = {id(p): i for i, p in enumerate(self._params)}
        self._travelling = [v for v in travelling if v.dtype.is_floating]
        self.kept = [tensor_variable(v) for v in [*trainable.non_trainable, *trainable.metrics, *trainable.optimizer]]
        self.tally = tf.Variable([0, 0], dtype=tf.int64, trainable=False)  # samples of the round: this rank's, all's
        self.group = RoundGroup(comm, self.tally)
        self._looking = rule.solver == "cg"
        self._sums, self._linear, self._first = (self._slots() if rule.begin else [] for _ in range(3))
        self._mu = tf.Variable(0.0, trainable=False)
        self._draw_traced = tf.function(self._draw, reduce_retracing=True, autograph=False)
        self.restart()

    def restart(self) -> None:
        """Reset the algorithm's state, for a new job."""
        self._state = self.rule.init([tf.identity(p) for p in self._params])
        self._round: Tree = []

    @property
    def passes(self) -> int:
        """Passes over an epoch's data that Keras's fit makes."""
        return 1 if self.rule.solver == "cg" else self.rule.passes

    @property
    def passes_in_all(self) -> int:
        """Passes over an epoch's data, with the one that only sums gradients."""
        return self.passes + 1 if self.rule.begin is not None else self.passes

    @property
    def sent_bytes(self) -> int:
        """Bytes of buffers that were exchanged in the current epoch."""
        return self.group.sent_bytes

    @property
    def waited_s(self) -> float:
        return self.group.waited_s

    # -- inside a step -------------------------------------------------------------------------------------------------
    def apply(self, original: Apply, gradients: Sequence[Tensor], variables: Sequence[Any]) -> None:
        """Replace the innermost optimizer's apply, which receives unscaled gradients."""
        step = steps.current()
        if step is None:
            original(list(gradients), list(variables))
            return
        own = [None if g is None else _own(step, g) for g in gradients]
        if self._looking:
            self._add(step, own, variables)
        else:
            with steps.entered(None):
                original([self._with_task(g, v) for g, v in zip(own, variables, strict=True)], list(variables))

    def _add(self, step: StepContext, gradients: Tree, variables: Sequence[Any]) -> None:
        with steps.entered(None):
            for g, v in zip(gradients, variables, strict=True):
                if g is not None:
                    total = self._sums[self._place[id(tensor_variable(v))]]
                    total.assign_add(tf.convert_to_tensor(g) * tf.cast(step.mine, total.dtype))

    def _with_task(self, gradient: Tensor, variable: Any) -> Tensor:
        """Return grad O_i(w) - linear + mu (w - w0), the gradient of the LocalProblem."""
        if gradient is None or not self._linear:
            return gradient
        raw = tensor_variable(variable)
        place = self._place[id(raw)]
        pull = tf.cast(self._mu, raw.dtype) * (raw - self._first[place])
        return tf.convert_to_tensor(gradient) - self._linear[place] + pull

    # -- around steps --------------------------------------------------------------------------------------------------
    def epoch(self, data: Open, fit: Fit, on_batch: OnBatch) -> Logs:
        """Run one epoch of rounds; return the last pass's logs.

        `fit` trains on a data set and calls its second argument after each step.
        """
        counting, logs = _Counting(on_batch, self.rule.batches, self._turn), Logs()
        self.group.begin_epoch()
        self._begin(data)
        for _ in range(self.passes):
            counting.next_pass()
            logs = fit(data(), counting)
            if counting.stopped:
                break
        self._end(data)
        return logs

    def _turn(self) -> None:
        """End a round and begin the next one inside an epoch."""
        self._end(None)
        self._begin(None)

    def _begin(self, data: Open | None) -> None:
        self.group.begin()
        self.tally.assign([0, 0])
        self._round = [tf.identity(p) for p in self._params]
        if self._looking:
            _clear(self._sums)  # the epoch's own pass sums the gradients
        elif self.rule.begin is not None:
            self._take(self._task(data, None))
            self.tally.assign([0, 0])

    def _task(self, data: Open | None, gradient: Tree | None) -> LocalProblem:
        assert self.rule.begin is not None and data is not None
        shard = _LocalObjective(self, data, self._round, gradient)
        task, self._state = self.rule.begin(self._state, self._round, shard, self.group)
        return task

    def _take(self, task: LocalProblem) -> None:
        assign(self._linear, task.linear)
        assign(self._first, self._round)
        self._mu.assign(task.mu)

    def _end(self, data: Open | None) -> None:
        if not int(self.tally[1]):
            return  # no batch since the last round
        mine = self._exactly(data) if self._looking else [tf.identity(p) for p in self._params]
        after, self._state = self.rule.end(self._state, self._round, mine, self.group)
        assigned_state.write(self._params, after)
        if self._travelling:
            assigned_state.write(self._travelling, self.group.mean(self._travelling))

    # -- passes that only evaluate gradients ---------------------------------------------------------------------------
    def gradient_at(self, params: Tree, data: Open) -> Tree:
        """Return grad O_i at `params`, over the rank's part of the epoch. Restores all other state."""
        kept = [(v, tf.identity(v)) for v in [*self.kept, *self._params]]
        assigned_state.write(self._params, params)
        self.tally.assign([0, 0])
        _clear(self._sums)
        for element in data():
            (self._draw if self._model.run_eagerly else self._draw_traced)(element)
        for variable, value in kept:
            variable.assign(value)
        return self.drawn_state()

    def drawn_state(self) -> Tree:
        samples = max(int(self.tally[0]), 1)
        return [total / tf.cast(samples, total.dtype) for total in self._sums]

    def _draw(self, element: Any) -> None:
        before, self._looking = self._looking, True
        try:
            self._model.train_step(element)
        finally:
            self._looking = before

    def _exactly(self, data: Open | None) -> Tree:
        """Return the minimum of the LocalProblem, by conjugate gradients."""
        gradient = self.drawn_state()
        task = self._task(data, gradient)
        assert data is not None
        step = conjugate_gradients.minimise(_LocalObjective(self, data, self._round, gradient), task)
        return [w + d for w, d in zip(self._round, step, strict=True)]

    def _slots(self) -> list[Variable]:
        return [tf.Variable(tf.zeros_like(p), trainable=False) for p in self._params]


class _LocalObjective:
    """A rank's part of the epoch's data, as an algorithm sees it (hfdt/algorithm.py, LocalObjective)."""

    def __init__(self, rounds: Rounds, data: Open, params: Tree, gradient: Tree | None) -> None:
        self._rounds, self._data, self._params, self._gradient = rounds, data, params, gradient

    def gradient(self) -> Tree:
        if self._gradient is None:
            self._gradient = self._rounds.gradient_at(self._params, self._data)
        return self._gradient

    def curvature(self, direction: Tree) -> Tree:
        """Return the Hessian times `direction`, by two gradients max(|w|, 1) apart; exact for a quadratic loss."""
        near, norm = self.gradient(), conjugate_gradients.norm
        scale = max(norm(self._params), 1.0) / max(norm(direction), 1e-30)
        away = [w + scale * d for w, d in zip(self._params, direction, strict=True)]
        moved = self._rounds.gradient_at(away, self._data)
        return [(t - h) / scale for t, h in zip(moved, near, strict=True)]


class _Counting:
    """A counter of an epoch's steps over its passes, which calls `turn` after every `batches` of them; 0 is never."""

    def __init__(self, on_batch: OnBatch, batches: int, turn: Callable[[], None]) -> None:
        self._on_batch, self._batches, self._turn = on_batch, batches, turn
        self._before, self._done, self.stopped = 0, 0, False

    def next_pass(self) -> None:
        self._before = self._done

    def __call__(self, step: int, logs: Any) -> bool:
        self._done = self._before + step + 1
        if self._batches and self._done % self._batches == 0:
            self._turn()
        self.stopped = not self._on_batch(self._done - 1, logs)
        return not self.stopped


def terms_note(name: str, rule: RoundAlgorithm, whole_batches: bool) -> str:
    """Describe an epoch, a round, `iterations` and schedules under `rule`, in one line for the user."""
    counted, batches = "iterations and schedules count a worker's own steps", quantity(rule.batches, "batch")
    if rule.batches and whole_batches:
        return f"{name}: a round is {batches} of each worker, then an average; {counted}"
    if rule.batches:
        return (
            f"{name}: a round is {batches}, of which each worker trains on its part, then an average; "
            "an epoch is one pass over the data; iterations and schedules count batches, as alone"
        )
    if rule.solver == "cg":
        return f"{name}: an epoch is one round, solved by conjugate gradients; iterations and schedules do not advance"
    times = "once" if rule.passes == 1 else f"{rule.passes} times"
    part = "batches" if whole_batches else "part of every batch (--batch per-worker: batches of its own, fewer steps)"
    return f"{name}: an epoch is one round, in which each worker trains {times} on its {part}; {counted}"


def _own(step: StepContext, gradient: Tensor) -> Tensor:
    """Return a rank's estimate of the global batch's gradient; 0 from a rank without samples."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    scale = tf.math.divide_no_nan(step.weight(values.dtype), step.share(values.dtype))
    scaled = step.weigh(values, scale)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    return scaled


def _weighed(tensor: Tensor, share: float) -> Tensor:
    """Return share * tensor; zeros where the share is 0, even for NaN."""
    return tensor * tf.cast(share, tensor.dtype) if share else tf.zeros_like(tensor)


def _clear(variables: list[Variable]) -> None:
    for variable in variables:
        variable.assign(tf.zeros_like(variable))
