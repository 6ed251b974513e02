"""Rank 0 as the parameter server of sessions: the algorithm on NumPy, the update by the script's own session.

The algorithm's output for a worker's gradients is fed in place of the tensors that pass through Python (client_shim's
gradients.py). Only the operations that change variables run.
"""

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_shim.replica.sessions import values
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.gradients import GradientNode
from client_shim.replica.sessions.plans import collected
from fdt.typing import Array
from nfdt.replica import session_optimizers
from nfdt.replica.numpy_applier import Arithmetic, ServerAlgorithm
from nfdt.replica.session_optimizers import Applied, momentum_of
from nfdt.replica.session_steps import SessionStep


def dense(arrays: Sequence[Array], sparse: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Return dense arrays of the variables' shapes; an embedding's rows are summed at their indices.

    Args:
        arrays: Gradients, with rows and indices for a sparse one.
        sparse: Kind of each array, as `GradientNode.sparse`.
        shapes: Shapes of the variables.
    """
    made: list[Array] = []
    rest = iter(zip(arrays, sparse, strict=True))
    for array, kind in rest:
        array = np.asarray(array)
        array = array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
        if kind:
            indices, _ = next(rest)
            whole = np.zeros(shapes[len(made)], array.dtype)
            np.add.at(whole, indices, array)
            array = whole
        made.append(array)
    return made


def of_step(taken: Sequence[Any], shapes: Sequence[Sequence[int]], gradients: Sequence[Array]) -> list[Array]:
    """Return `dense` of all gradient nodes of a step, in order. `shapes`: of all their variables."""
    made: list[Array] = []
    arrays, places = iter(gradients), iter(shapes)
    for each in taken:
        made += dense([next(arrays) for _ in each.inputs], each.sparse, [next(places) for _ in each.variables])
    return made


def as_taken(gradients: Sequence[Array], sparse: Sequence[str], dtypes: Sequence[Any]) -> list[Array]:
    """Return the arrays that replace a node's gradients.

    Of an embedding only rows that are not 0 remain, because an optimizer does not touch rows that a batch lacks.

    Args:
        gradients: Dense gradients.
        sparse: Kind of each returned array.
        dtypes: NumPy dtype of each returned array.
    """
    made: list[Array] = []
    rest = iter(gradients)
    for place, kind in enumerate(sparse):
        if kind == "indices":
            continue
        gradient = np.asarray(next(rest))
        if not kind:
            made.append(gradient.astype(dtypes[place], copy=False))
            continue
        touched = np.flatnonzero(np.any(gradient.reshape(len(gradient), -1) != 0, axis=1))
        made += [gradient[touched].astype(dtypes[place]), touched.astype(dtypes[place + 1])]
    return made


def packed(arrays: Sequence[Array]) -> Array:
    """Return one vector, of float32 unless an array is wider."""
    kinds = [np.asarray(a).dtype for a in arrays]
    dtype = np.float64 if any(kind == np.float64 for kind in kinds) else np.float32
    return np.concatenate([np.ravel(a).astype(dtype, copy=False) for a in arrays]) if arrays else np.empty(0, dtype)


def unpacked(vector: Array, shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Return the parts of a vector as views in `shapes`."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


Feeds = Mapping[Any, Any]


@dataclass(frozen=True)
class SessionGradients:
    """A worker's push. `gradients`: dense, of all variables in the order of `SessionStep.taken`."""

    worker: int
    gradients: Sequence[Array]
    samples: int


@dataclass(frozen=True)
class SessionUpdate:
    """Input of an update.

    Attributes:
        arrays: Arrays of the `GradientNode`.
        scale: Factor on the learning rate.
        slots: Optimizer variables to write before the update.
        held: Their values.
    """

    arrays: Sequence[Array]
    scale: float
    slots: Sequence[Any]
    held: Sequence[Array]


class SessionAlgorithm:
    """The algorithm for the gradients of one call, in one session. `variables`: the variables of these gradients."""

    def __init__(
        self, rule: str | None, taken: GradientNode, applied: Sequence[Applied], variables: Any, size: int
    ) -> None:
        momentum = momentum_of(taken, applied, variables)
        off = momentum is not None
        made = session_optimizers.algorithm_for(rule, applied, variables, can_be_off=off)
        self._momentum = momentum if size > 1 else None  # with a single worker the optimizer works alone
        self.rule = ServerAlgorithm(made, size, self._momentum.mu if self._momentum else 0.0)
        session_optimizers.check(made, applied, momentum=self.rule.form.momentum, can_be_off=off)
        self.variables = frozenset(taken.variables)
        self._taken, self._applied = taken, applied

    def update(self, arithmetic: Arithmetic) -> SessionUpdate:
        """Return the input of the script's own update after a push."""
        made = arithmetic.update
        gradients: list[Array] = list(made.gradient)
        slots: list[Any] = []
        held: list[Array] = []
        if self.rule.form.momentum and made.momentum == "algorithm" and self._momentum is not None:
            slots = list(self._momentum.slots)
            gradients, held = self._momentum.off(gradients, made.gradient if made.fresh is None else made.fresh)
        scale = float(made.lr_scale) if self.rule.form.scales else 1.0
        if scale != 1.0 and all(each.rate is None for each in self._applied):
            gradients, scale = [g * scale for g in gradients], 1.0
        dtypes = [tensor.dtype.as_numpy_dtype for tensor in self._taken.outputs]
        return SessionUpdate(as_taken(gradients, self._taken.sparse, dtypes), scale, slots, held)


class SessionServer:
    """Applies pushes to sessions. `rule`: the command line's algorithm; None: the default for the optimizer."""

    def __init__(self, size: int, rule: str | None) -> None:
        self._size, self._rule = size, rule
        self._ruled: weakref.WeakKeyDictionary[Any, dict[int, SessionAlgorithm]] = weakref.WeakKeyDictionary()
        self._values: weakref.WeakKeyDictionary[Any, dict[str, Array]] = weakref.WeakKeyDictionary()
        self.taus: list[int] = []

    def forget(self, session: Any, anew: Collection[str] = ()) -> None:
        """Drop the values of a session whose variables were written outside of training.

        `anew`: names of variables that were initialised or restored; the algorithm's state for them is dropped too.
        """
        self._values.pop(session, None)
        ruled = self._ruled.get(session, {})
        for number in [n for n, each in ruled.items() if not each.variables.isdisjoint(anew)]:
            del ruled[number]

    def met(self) -> None:
        """Note a synchronisation: all workers have the current variables."""
        for ruled in self._ruled.values():
            for each in ruled.values():
                each.rule.synchronised()

    def check(self, session: Any, step: SessionStep) -> None:
        """Check that the algorithm accepts the run's gradients. Raises CaptureError if not."""
        for taken in step.taken:
            self._of(session, step, taken)

    def apply(
        self, call: SessionCall, step: SessionStep, push: SessionGradients, feeds: Feeds, late: Sequence[Any] = ()
    ) -> tuple[list[Array], list[Any]]:
        """Run the script's update on a worker's gradients.

        Args:
            call: The run of the session.
            step: The training run.
            push: The gradients.
            feeds: Further values to feed.
            late: Fetched tensors that wait for the update.

        Returns:
            The values of `step.pulled` for that worker, and the values of `late`.
        """
        params, rates = self._params(call, step), _rates(call, step, feeds)
        fed: dict[Any, Any] = dict(feeds)
        rest = iter(push.gradients)
        for taken in step.taken:
            ruled, mine = self._of(call.session, step, taken), [params[name] for name in taken.variables]
            eta, gradients = _rate(rates, step, taken), [next(rest) for _ in mine]
            update = ruled.update(ruled.rule.pushed(push.worker, gradients, mine, eta, push.samples))
            self.taus.append(ruled.rule.taus.pop())
            fed |= dict(zip(taken.outputs, update.arrays, strict=True))
            scaled = step.applied_to(taken) if update.scale != 1.0 else ()
            fed |= {each.rate: rates[each.operation] * update.scale for each in scaled if each.rate is not None}
            values.write(call.plainly, update.slots, update.held)
        given = call.plainly([*late, *step.moves], fed)
        self._read(call, step)
        return self._sent(call, step, push.worker), list(given[: len(late)])

    # -- weights ---------------------------------------------------------------------------------------------------
    def _params(self, call: SessionCall, step: SessionStep) -> Mapping[str, Array]:
        known = self._values.setdefault(call.session, {})
        if any(v.op.name not in known for v in step.pulled):
            self._read(call, step)
        return dict(known)

    def _read(self, call: SessionCall, step: SessionStep) -> None:
        arrays = call.plainly(list(step.pulled))
        self._values.setdefault(call.session, {}).update(
            {str(v.op.name): np.asarray(a) for v, a in zip(step.pulled, arrays, strict=True)}
        )

    def _sent(self, call: SessionCall, step: SessionStep, worker: int) -> list[Array]:
        now = dict(self._values[call.session])
        for taken in step.taken:
            mine = [now[name] for name in taken.variables]
            sent = self._of(call.session, step, taken).rule.pulled(worker, mine)
            now |= dict(zip(taken.variables, sent, strict=True))
        return [now[str(v.op.name)] for v in step.pulled]

    # -- algorithms ------------------------------------------------------------------------------------------------
    def _of(self, session: Any, step: SessionStep, taken: GradientNode) -> SessionAlgorithm:
        ruled = self._ruled.setdefault(session, {})
        if taken.number not in ruled:
            known, applied = collected(step.graph), step.applied_to(taken)
            variables = [known[name] for name in taken.variables]
            ruled[taken.number] = SessionAlgorithm(self._rule, taken, applied, variables, self._size)
        return ruled[taken.number]


def _rates(call: SessionCall, step: SessionStep, feeds: Feeds) -> dict[str, Array]:
    """Return the current learning rates by the names of updates."""
    applied = [each for each in step.applied if each.rate is not None]
    given = call.plainly([each.rate for each in applied], feeds) if applied else []
    return {each.operation: np.asarray(rate) for each, rate in zip(applied, given, strict=True)}


def _rate(rates: Mapping[str, Array], step: SessionStep, taken: GradientNode) -> Array:
    """Return the learning rate of the node's first update; 1 for an update by hand."""
    return next((rates[a.operation] for a in step.applied_to(taken) if a.operation in rates), np.float32(1))
