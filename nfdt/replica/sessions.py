"""A worker's runs of TensorFlow 1 sessions (client_shim/replica/sessions).

A run that computes gradients of variables and changes variables is a training run. Workers take such runs in turn:
every n-th is this worker's, with its whole batch. For the others' runs the script gets the results of the worker's own
last one. Rank 0's session is the parameter server's (session_server.py). In a training loop no worker waits for others,
except for numbers that rank 0 reads; after it all synchronise and have rank 0's variables.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import values
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.plans import FetchPlan
from client_shim.replica.sessions.values import agreed_numbers, read_by_script
from client_shim.replica.steps import Site, loop_at_work, where
from fdt.errors import CaptureError
from fdt.process_group import RankPush, ReplicaGroup
from nfdt.replica import agreed_values
from nfdt.replica.agreed_values import SyncedSessions
from nfdt.replica.session_optimizers import Optimizers
from nfdt.replica.session_server import SessionGradients, SessionServer, of_step, packed, unpacked
from nfdt.replica.session_steps import (
    APART,
    SessionStep,
    SessionSteps,
    begun_anew,
    numbers_of,
    rows_of,
    written_by_feeds,
)
from replica.session_runs import SessionRuns, in_main

CLOSED = "rank 0 closed a session before all workers had pushed; a session must stay open until then"

Last = tuple[int, dict[str, Any]]  # rows of a worker's last run, and its results by tensor


class NfdtSessions(SessionRuns):
    """Runs of sessions on one rank. `poll` returns the arrived pushes for sessions; SessionRuns has `replicated`."""

    def __init__(
        self,
        group: ReplicaGroup,
        rule: str | None,
        poll: Callable[[], Sequence[RankPush]],
        replicated: Callable[[], None] | None,
    ) -> None:
        super().__init__(group, lambda _, arrays: arrays, replicated)
        self._poll, self._server = poll, SessionServer(group.size, rule)
        self.optimizers = Optimizers()
        self._steps = SessionSteps(self.optimizers)
        self._kept = SyncedSessions(group)
        self._last: weakref.WeakKeyDictionary[Any, dict[str, Last]] = weakref.WeakKeyDictionary()
        self._fetched: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # variables, by graph
        self._around: Site | None = None  # the loop that trains
        self._turns: dict[str, int] = {}  # by `SessionStep.key`
        self.steps = self.samples = 0

    @property
    def taus(self) -> Sequence[int]:
        """Staleness of all pushes."""
        return self._server.taus

    # -- any run ---------------------------------------------------------------------------------------------------
    def _is_training(self, session: Any, plan: FetchPlan) -> bool:
        return bool(plan.taken and (plan.moves or self._steps.of(plan, session.graph).hidden))

    def _untrained(self, session: Any, plan: FetchPlan, feeds: dict[Any, Any], run: Callable[[], Any]) -> Any:
        if plan.moves:
            self._check_moving(session, plan, feeds)
        elif plan.taken:
            names = {name for taken in plan.taken for name in taken.variables}
            self._fetched.setdefault(session.graph, set()).update(names)
        main = in_main()
        outside = main and not self._in_loop()
        if outside:
            self._meet()
        try:
            result = run()
        finally:
            if plan.moves:
                self._moved(session, plan, outside=outside)
        agreed = self._rank_0s if outside else self._rank_0_reads
        return agreed_numbers(result, agreed) if main and read_by_script() else result

    def rank_0s(self, what: str, value: Any) -> Any:
        """Return `value`: in training each worker has its own, because workers run different steps."""
        return value

    def _in_loop(self) -> bool:
        return self._around is not None and self._around.running()

    def _check_moving(self, session: Any, plan: FetchPlan, feeds: dict[Any, Any]) -> None:
        """Check a run that changes variables without gradients. All workers execute it, so it must not be training."""
        names = [f"{each.name}'s update" for each in self.optimizers.within(plan, session.graph)]
        fetched = self._fetched.get(session.graph, set())
        if not names and fetched and feeds:
            fed_writes = written_by_feeds(plan, session.graph, feeds) & fetched
            names = [f"an update of {name} without an optimizer" for name in sorted(fed_writes)]
        if names:
            self._by_every_rank(APART.format(names[0], where()))

    def _moved(self, session: Any, plan: FetchPlan, *, outside: bool) -> None:
        """Note that each worker has written its variables itself."""
        self._server.forget(session, begun_anew(plan, session.graph))
        if outside:
            self._kept.differ(session)

    @property
    def begun(self) -> bool:
        """Whether the script has come to its first step."""
        return bool(self._turns)

    # -- a training run --------------------------------------------------------------------------------------------
    def _trained(self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any]) -> list[Any]:
        step = self._steps.of(plan, call.session.graph)
        reason = step.undivided(feeds, self.gradients)
        if reason:
            self._by_every_rank(reason)
            self._server.forget(call.session)
            return list(call.run(list(plan.fetches), feeds))
        self._begin(call, step)
        self._group.next_moment()
        turn = self._turns.get(step.key, 0)
        self._turns[step.key] = turn + 1
        if turn % self._group.size == self._group.rank:
            fetched = self._own(call, step, feeds)
        else:
            self._serve_arrived()
            fetched = self._others(call, step, feeds)
        return agreed_numbers(fetched, self._rank_0_reads) if read_by_script() else fetched

    def _rank_0_reads(self, _: str, numbers: list[Any]) -> Any:
        return agreed_values.rank_0s(self._group, numbers, f"{len(numbers)} numbers")

    def _begin(self, call: SessionCall, step: SessionStep) -> None:
        if not self._in_loop():
            self._around = loop_at_work()
        self._server.check(call.session, step)
        if self._kept.train(call, step.pulled):
            self._meet()
            self._kept.train(call, step.pulled)

    def _own(self, call: SessionCall, step: SessionStep, feeds: dict[Any, Any]) -> list[Any]:
        """Run this worker's turn: its gradients go to the server, and the variables come from it."""
        peer = self._group.rank > 0
        # `late` waits for the update: ranks above 0 update their own variables, then take the server's.
        wanted = [*step.computed, *(step.late if peer else step.before)]
        run = call.run([*wanted, *step.gradients, *step.counted], feeds)
        known = dict(zip((f.name for f in wanted), run, strict=False))
        gradients = run[len(wanted) : len(wanted) + len(step.gradients)]
        rows = len(run[-1]) if step.counted else rows_of(feeds)
        push = SessionGradients(self._group.rank, of_step(step.taken, step.shapes, gradients), rows)
        if peer:
            self._push(call, step, push, feeds)
        else:
            before = {tensor: known[tensor.name] for tensor in step.before}
            _, late = self._server.apply(call, step, push, {**feeds, **before}, step.late)
            known |= _named(step.late, late)
            self._serve_arrived()
        self.steps += 1
        self.samples += rows
        fetched = {f.name: known[f.name] for f in step.plan.fetches if isinstance(f, tf.Tensor)}
        self._last.setdefault(call.session, {})[step.key] = rows, fetched
        return [fetched.get(f.name) for f in step.plan.fetches]

    def _push(self, call: SessionCall, step: SessionStep, push: SessionGradients, feeds: dict[Any, Any]) -> None:
        """Send a gradient to rank 0, and write the variables of the answer."""
        header = {
            "session": self._kept.number(call.session),
            "fetches": [f.name for f in step.plan.fetches],
            "fed": [tensor.name for key in feeds for tensor in tf.nest.flatten(key, expand_composites=True)],
            "numbers": numbers_of(feeds),
            "samples": push.samples,
        }
        weights, answer = self._group.push_pull(packed(push.gradients), header)
        floats, others = _sorted(step.pulled)
        pulled = [*unpacked(weights, [v.shape.as_list() for v in floats]), *answer["others"]]
        arrays = [_typed(v, a) for v, a in zip([*floats, *others], pulled, strict=True)]
        values.write(call.plainly, [*floats, *others], arrays)

    def _others(self, call: SessionCall, step: SessionStep, feeds: dict[Any, Any]) -> list[Any]:
        """Handle a run that is another worker's: its batch is skipped."""
        before, known = self._last.get(call.session, {}).get(step.key, (0, {}))
        standing = {f.name for f in step.standing}
        tensors = [f for f in step.plan.fetches if isinstance(f, tf.Tensor)]
        missing = [f for f in tensors if f.name not in known and f.name not in standing]
        elements = step.plan.elements
        rows = rows_of(feeds)
        if missing:
            feeds |= dict(zip(elements, call.plainly(list(elements), feeds), strict=True)) if elements else {}
            known = {**known, **self._read_values(call, missing, feeds)}
        elif elements:
            passed = call.plainly([*step.counted, *dict.fromkeys(e.op for e in elements)], feeds)
            rows = len(passed[0]) if step.counted else 0
        if step.standing:
            known = {**known, **_named(step.standing, call.plainly(step.standing))}
        return [_as_of(rows, before, known.get(f.name)) for f in step.plan.fetches]

    def _read_values(self, call: SessionCall, missing: Sequence[Any], feeds: dict[Any, Any]) -> dict[str, Any]:
        """Return the values of `missing` for this batch; variables keep their values."""
        plan = self._plans.of(call.session.graph, missing, feeds)
        variables = plan.variables(call.session.graph) if plan.moves else []
        before = values.read(call.plainly, variables)
        given = call.plainly(list(missing), feeds)
        if variables:
            values.write_changed(call.plainly, variables, before, values.read(call.plainly, variables))
        return _named(missing, given)

    # -- serving and synchronisation -------------------------------------------------------------------------------
    def _serve_arrived(self) -> None:
        for push in self._poll():
            self.serve(push)

    def serve(self, push: RankPush) -> None:
        """Apply one push on rank 0, and answer it."""
        session = self._kept.session(push.header["session"])
        if session is None or session._closed:
            raise CaptureError(CLOSED)
        graph, header = session.graph, push.header
        fetches = [graph.as_graph_element(name) for name in header["fetches"]]
        fed = [graph.as_graph_element(name) for name in header["fed"]]
        step = self._steps.of(self._plans.of(graph, fetches, fed), graph)
        numbers = {graph.as_graph_element(name): value for name, value in header["numbers"].items()}
        given = SessionGradients(push.rank, unpacked(push.vector, step.shapes), header["samples"])
        sent, _ = self._server.apply(SessionCall(self._kept.original, session), step, given, numbers)
        pairs = list(zip(step.pulled, sent, strict=True))
        floats, others = _sorted(pairs, lambda pair: pair[0])
        numbers_now = [np.asarray(array).tolist() for _, array in others]
        push.answer(packed([array for _, array in floats]), {"others": numbers_now})

    def meet(self) -> None:
        """Synchronise: the script has ended, or a session is about to be closed."""
        self._meet()

    def closing(self, original: Any, session: Any) -> None:
        """Replace Session.close: the server's session must stay open until all workers have pushed."""
        ends = sys.exc_info()[1]
        natural = ends is None or isinstance(ends, (tf.errors.OutOfRangeError, SystemExit, StopIteration))
        if natural and in_main() and self._kept.has(session):
            self._meet()
        original(session)

    def _meet(self) -> None:
        if self._kept.met:
            return
        self._serve_arrived()
        self._kept.meet()
        self._server.met()
        self._turns = self._rank_0s("turns", self._turns)


def _named(fetches: Sequence[Any], given: Sequence[Any]) -> dict[str, Any]:
    return dict(zip((f.name for f in fetches), given, strict=True))


def _sorted(listed: Sequence[Any], variable: Callable[[Any], Any] = lambda each: each) -> tuple[list[Any], list[Any]]:
    """Divide variables, or values with a variable: those of floats, which are sent as a vector, and the others."""
    floats = [each for each in listed if variable(each).dtype.base_dtype.is_floating]
    return floats, [each for each in listed if not variable(each).dtype.base_dtype.is_floating]


def _typed(variable: Any, array: Any) -> Any:
    return np.asarray(array).astype(variable.dtype.base_dtype.as_numpy_dtype)


def _as_of(rows: int, before: int, value: Any) -> Any:
    """Repeat or cut a result for a batch of `before` rows to `rows` rows."""
    fits = isinstance(value, np.ndarray) and value.ndim and len(value) == before and rows not in (0, before)
    return value[np.arange(rows) % before] if fits else value
