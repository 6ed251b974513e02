"""Synchronisation of sessions that train: equal numbers on all workers, and rank 0's values for their variables.

`anew` and `by_feeds` find the variables that a run without gradients writes: by initialisation, restoration or feeds.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import values
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.plans import FetchPlan, ancestors, collected
from fdt.compat.tensorflow import BaseSession
from fdt.process_group import ReplicaGroup
from replica.exchange import arrays_of_rank_0


class SyncedSessions:
    """The sessions that train. `met`: whether no worker has trained since the last synchronisation."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self.met = True
        self.original: Any = BaseSession.run
        self._count = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._open: dict[int, Any] = {}  # kept alive until the synchronisation: rank 0's sessions serve
        self._names: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._same: weakref.WeakSet[Any] = weakref.WeakSet()

    def train(self, call: SessionCall, variables: Sequence[Any]) -> bool:
        """Register a training run that reaches `variables`. Return whether all workers must synchronise before it."""
        session = call.session
        if session not in self._numbers:
            self._numbers[session] = self._count
            self._count += 1
        self._open[self._numbers[session]] = session
        self._names.setdefault(session, set()).update(str(v.op.name) for v in variables)
        self.original, self.met = call.original, False
        return session not in self._same

    def differ(self, session: Any) -> None:
        """Note that each worker has written the session's variables itself."""
        self._same.discard(session)

    def has(self, session: Any) -> bool:
        """Return whether the session has trained since the last synchronisation."""
        return not self.met and session in self._open.values()

    def number(self, session: Any) -> int:
        """Return the session's number."""
        return self._numbers[session]

    def session(self, number: int) -> Any:
        """Return the session of a number; None if it is gone."""
        return next((session for session, its in self._numbers.items() if its == number), None)

    def meet(self) -> None:
        """Synchronise all workers: they get rank 0's variables. Rank 0 serves pushes until the last worker arrives."""
        self.met = True
        mine = [[number, sorted(self._names[s])] for number, s in sorted(self._open.items()) if not s._closed]
        for number, names in self._group.broadcast(mine, "sessions"):
            self._become_rank_0s(number, names)
        self._open.clear()

    def _become_rank_0s(self, number: int, names: Sequence[str]) -> None:
        session = self.session(number)
        if session is not None and session._closed:
            session = None
        known = collected(session.graph) if session is not None else {}
        call = SessionCall(self.original, session)
        variables = [known[name] for name in names] if known else []
        arrays = [np.asarray(a) for a in values.read(call.plainly, variables)]
        rank_0s = arrays_of_rank_0(self._group, {"": arrays}, "variables")[""]
        if self._group.rank and variables:
            values.write_changed(call.plainly, variables, rank_0s, arrays)
        if session is not None:
            self._same.add(session)


_known: weakref.WeakKeyDictionary[FetchPlan, set[str]] = weakref.WeakKeyDictionary()


def anew(plan: FetchPlan, graph: Any) -> set[str]:
    """Return the names of variables that get an initial or a restored value: their training starts again."""
    if plan not in _known:
        initial = {variable.initializer for variable in collected(graph).values()}
        _known[plan] = {_written(o) for o in plan.moving() if o in initial or _is_restored(o)}
    return _known[plan]


def by_feeds(plan: FetchPlan, graph: Any, feeds: Iterable[Any]) -> set[str]:
    """Return the names of other variables whose change depends on the feeds."""
    fed = {key.op for key in feeds if isinstance(key, tf.Tensor)}
    changed = {_written(o) for o in plan.moving() if fed & ancestors([o])}
    return changed - anew(plan, graph) if changed else changed


def _is_restored(operation: Any) -> bool:
    return any(o.type.startswith("Restore") for o in ancestors([operation]))


def _written(operation: Any) -> str:
    return str(operation.inputs[0].op.name)
