"""Analysis of a session's training run in its graph, once per combination of fetches and feeds.

A worker computes gradients and the other fetches. Rank 0 runs the operations that change variables, fed with the
algorithm's output for these gradients. No other value of the batch may reach those operations.

`begun_anew` and `written_by_feeds` find the variables that a run without gradients writes: by initialisation,
restoration or feeds.
"""

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions.gradients import GradientNode, Gradients
from client_shim.replica.sessions.plans import FetchPlan, ancestors, collected, is_random
from client_shim.replica.steps import where
from fdt.ops import reached
from nfdt.replica.session_optimizers import Applied, Optimizers

OTHERWISE = "; with --allow-replicated every worker does the whole work"
NO_BATCH = "a session's training run must be fed a batch, for workers to take turns. Received: none at {}" + OTHERWISE
MOVED = "a session's training run must change variables by gradients only. Received: {}, at {}" + OTHERWISE
APART = (
    "a session must compute and apply gradients in one run, so that workers can take runs in turn. Received: {} of "
    "gradients that were fed, at {}; hfdt run divides such runs" + OTHERWISE
)
ORDER = (
    "a session's training run must compute the gradients of its batch before it changes variables. "
    "Received: {}, at {}; remove the control dependency, or use two runs" + OTHERWISE
)
INSIDE = "variables must not be changed inside tf.cond, tf.while_loop or a tf.function. Received: {}, at {}" + OTHERWISE
UNKNOWN = "variables must be in their graph's collections and have known shapes. Received: {}, at {}" + OTHERWISE
_ENTRIES = ("Placeholder", "IteratorGetNext")
_HANDLES = (tf.resource, tf.variant)
_CALLS = ("If", "While", "StatefulPartitionedCall")


@dataclass(frozen=True, eq=False)
class SessionStep:
    """A training run of a session.

    Attributes:
        plan: Fetches and operations of the run.
        graph: The session's graph.
        moves: Operations that change variables.
        applied: The optimizers' updates among them.
        pulled: Variables that a worker needs from the server: all that the run reaches, except the optimizers' own.
    """

    plan: FetchPlan
    graph: Any
    moves: Sequence[Any]
    applied: Sequence[Applied]
    pulled: Sequence[Any]
    _reasons: dict[Any, str] = field(default_factory=dict)

    @property
    def taken(self) -> Sequence[GradientNode]:
        """The gradients of the run."""
        return self.plan.taken

    @cached_property
    def key(self) -> str:
        """Identity of the gradients: workers take runs with equal keys in turn."""
        return " ".join(str(taken.number) for taken in self.taken)

    @cached_property
    def gradients(self) -> list[Any]:
        """The graph's own gradients, as tensors."""
        return [tensor for taken in self.taken for tensor in taken.inputs]

    @cached_property
    def computed(self) -> list[Any]:
        """The fetches that need no change of variables."""
        return [f for f in self.plan.fetches if not self._waits(f)]

    @cached_property
    def late(self) -> list[Any]:
        """The fetched tensors that are computed after a change of variables."""
        return [f for f in self.plan.fetches if isinstance(f, tf.Tensor) and self._waits(f)]

    @cached_property
    def before(self) -> list[Any]:
        """Tensors that `late` is computed from and that exist before the update, such as the loss."""
        waiting, seen, made = [f.op for f in self.late], {*self.moves, *self._passing}, dict[str, Any]()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            waiting += [o for o in each.control_inputs if o in self._behind]
            for tensor in each.inputs:
                if tensor.op in self._behind or tensor.op in self._of_gradients:
                    waiting.append(tensor.op)
                elif tensor.dtype not in _HANDLES and not tensor.dtype._is_ref_dtype:
                    made[str(tensor.name)] = tensor
        return [made[name] for name in sorted(made)]

    def _waits(self, fetch: Any) -> bool:
        return (fetch if isinstance(fetch, tf.Operation) else fetch.op) in self._behind

    @cached_property
    def _behind(self) -> set[Any]:
        """The operations that change variables, and those that wait for one of them."""
        return _descendants(self.moves, self.plan.operations, control=True)

    @cached_property
    def _passing(self) -> list[Any]:
        """The operations where gradients pass through Python."""
        return [taken.outputs[0].op for taken in self.taken]

    @cached_property
    def _of_gradients(self) -> set[Any]:
        """The operations that depend on these."""
        return _descendants(self._passing, self.plan.operations, control=False)

    @cached_property
    def standing(self) -> list[Any]:
        """The fetched tensors that do not depend on the batch: variables, and functions of them."""
        tensors = [f for f in self.computed if isinstance(f, tf.Tensor)]
        return [f for f in tensors if not any(map(_is_drawn, ancestors([f])))]

    @property
    def shapes(self) -> list[list[int]]:
        """Shapes of the variables with gradients, in the order of `taken`."""
        known = {v.op.name: v.shape.as_list() for v in self.pulled}
        return [known[name] for taken in self.taken for name in taken.variables]

    @cached_property
    def counted(self) -> list[Any]:
        """The smallest iterator output, to count a batch's rows."""
        shaped = [e for e in self.plan.elements if e.shape.rank]
        return sorted(shaped, key=lambda e: int(np.prod([n or 1 for n in e.shape.as_list()[1:]])))[:1]

    def applied_to(self, taken: GradientNode) -> list[Applied]:
        """Return the updates of the node's variables."""
        return [each for each in self.applied if each.variables & set(taken.variables)]

    def undivided(self, feeds: Mapping[Any, Any], gradients: Gradients) -> str:
        """Return why workers cannot take turns at this run, or "" if they can."""
        entries = [*batch_of(feeds), *self.plan.elements]
        key = frozenset(str(tensor.name) for tensor in entries)
        if key not in self._reasons:
            self._reasons[key] = self._found(entries, gradients)
        return self._reasons[key]

    def _found(self, entries: Sequence[Any], gradients: Gradients) -> str:
        if not entries:
            return NO_BATCH.format(where())
        moved = self.plan.moved_by(entries, gradients)
        if moved:
            return MOVED.format(f"{moved}, which is computed from the batch itself", where())
        order = self._out_of_order(entries)
        if order:
            return ORDER.format(order, where())
        inner = [o for o in self.moves if not self.graph.is_fetchable(o)] or self.hidden
        if inner:
            return INSIDE.format(inner[0].name, where())
        known = collected(self.graph)
        names = [*(name for taken in self.taken for name in taken.variables), *(v.op.name for v in self.pulled)]
        names += sorted(self.plan.moved())
        lost = [name for name in names if name not in known or not known[name].shape.is_fully_defined()]
        return UNKNOWN.format(lost[0], where()) if lost else ""

    def _out_of_order(self, entries: Sequence[Any]) -> str:
        """Return the operation that waits for a value that rank 0 lacks or has already replaced, or "".

        The cause is a control dependency.
        """
        for taken in self.taken:
            if any(tensor.op in self._behind for tensor in taken.inputs):
                return f"gradients of {taken.variables[0]} that are computed after a change of variables"
        fed = frozenset(str(tensor.name) for taken in self.taken for tensor in taken.outputs)
        update = ancestors(self.moves, fed)
        behind = ancestors(self.late, fed.union(str(tensor.name) for tensor in self.before))
        waited = [t for t in entries if t.op in update] + [t for t in self.plan.elements if t.op in behind]
        return f"a change of variables that depends on {waited[0].name} by a control dependency" if waited else ""

    @cached_property
    def hidden(self) -> list[Any]:
        """Operations behind the gradients that may change variables inside a call."""
        return sorted((o for o in self._of_gradients if o.type in _CALLS), key=lambda o: str(o.name))


class SessionSteps:
    """The training runs of all graphs, cached by plan."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._known: weakref.WeakKeyDictionary[FetchPlan, SessionStep] = weakref.WeakKeyDictionary()

    def of(self, plan: FetchPlan, graph: Any) -> SessionStep:
        """Return the training run of a plan."""
        if plan not in self._known:
            slots = self._optimizers.slots(graph)
            pulled = [v for v in plan.variables(graph) if v.op.name not in slots]
            self._known[plan] = SessionStep(plan, graph, plan.moving(), self._optimizers.within(plan, graph), pulled)
        return self._known[plan]


_restarted: weakref.WeakKeyDictionary[FetchPlan, set[str]] = weakref.WeakKeyDictionary()


def begun_anew(plan: FetchPlan, graph: Any) -> set[str]:
    """Return the names of variables that get an initial or a restored value: their training starts again."""
    if plan not in _restarted:
        initial = {variable.initializer for variable in collected(graph).values()}
        _restarted[plan] = {_written(o) for o in plan.moving() if o in initial or _is_restored(o)}
    return _restarted[plan]


def written_by_feeds(plan: FetchPlan, graph: Any, feeds: Iterable[Any]) -> set[str]:
    """Return the names of other variables whose change depends on the feeds."""
    fed = {key.op for key in feeds if isinstance(key, tf.Tensor)}
    changed = {_written(o) for o in plan.moving() if fed & ancestors([o])}
    return changed - begun_anew(plan, graph) if changed else changed


def _is_restored(operation: Any) -> bool:
    return any(o.type.startswith("Restore") for o in ancestors([operation]))


def _written(operation: Any) -> str:
    return str(operation.inputs[0].op.name)


def batch_of(feeds: Mapping[Any, Any]) -> list[Any]:
    """Return the fed tensors that are not single numbers."""
    parts = [key for key, value in feeds.items() if not isinstance(key, tf.Tensor) or np.ndim(value)]
    return list(tf.nest.flatten(parts, expand_composites=True))


def numbers_of(feeds: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fed numbers (a learning rate, a keep probability) by name, for the server's update."""
    pairs = ((key, np.asarray(value)) for key, value in feeds.items() if isinstance(key, tf.Tensor))
    return {str(key.name): value.item() for key, value in pairs if not value.ndim and value.dtype.kind in "fiubU"}


def rows_of(feeds: Mapping[Any, Any]) -> int:
    """Return the number of rows of a fed batch; 0 without one."""
    open_rows = feeding.rows_of(feeds)
    fixed = (len(v) for k, v in feeds.items() if isinstance(k, tf.Tensor) and np.ndim(v))
    return next(fixed, 0) if open_rows is None else open_rows


def _is_drawn(operation: Any) -> bool:
    return operation.type.startswith(_ENTRIES) or is_random(operation)


def _descendants(operations: Sequence[Any], within: Collection[Any], *, control: bool) -> set[Any]:
    """Return `operations` and their dependents among `within`. `control`: include control dependencies."""

    def dependents(operation: Any) -> list[Any]:
        found = [o for tensor in operation.outputs for o in tensor.consumers()]
        return [o for o in (*found, *(operation._control_outputs if control else ())) if o in within]

    return reached([o for o in operations if o in within], dependents)
