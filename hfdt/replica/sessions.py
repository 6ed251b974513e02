"""A rank's runs of TensorFlow 1 sessions (client_shim/replica/sessions).

A run that computes gradients of variables is a training run. Each rank feeds its part of the batch's rows; gradients
are weighted and summed over ranks inside the run, and other fetched values are combined after it. Values that cannot be
combined are fetched before it, of the whole batch, without the update. Any other run is replicated on every rank.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions import values
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.gradients import GradientNode
from client_shim.replica.sessions.patches import THREADS
from client_shim.replica.sessions.plans import FetchPlan
from client_shim.replica.sessions.values import agreed_numbers, read_by_script
from client_shim.replica.steps import where
from fdt.data import epochs
from fdt.errors import CaptureError
from fdt.process_group import ReplicaGroup
from hfdt.replica import session_trials as trials
from hfdt.replica.session_outputs import INEXACT, Combining, OutputKind, added, cells, rebuilt
from hfdt.replica.session_sources import CellSources
from hfdt.replica.session_trials import SessionRun, Share
from hfdt.worker.step_context import Reading
from replica.exchange import GroupedExchange
from replica.placement import divided
from replica.session_runs import THREAD, SessionRuns

OTHERWISE = "; with --allow-replicated every rank does the whole work"
NO_BATCH = "a session's training run must be fed a batch of at least 2 rows. Received: {}, at {}" + OTHERWISE
FIXED = "a session's graph must accept batches of any number of rows. Received: {}, at {}" + OTHERWISE
NEITHER = (
    "a session's gradient must be a mean or a sum over the batch's rows. Received: one that is neither, at {}. Causes: "
    "rows that depend on each other (batch normalization by hand), a mask, a mean plus a sum, a first axis of time"
    + OTHERWISE
)
MOVED = "a session's training run must change variables by gradients only. Received: {}, at {}" + OTHERWISE
STUCK = (
    "a training run may fetch only means, sums and rows of the batch if they are computed after its update. Received: "
    "{}, which is none of these, at {}; compute it without a control dependency on the update" + OTHERWISE
)
MANY = "a run must compute gradients at most {} times. Received: {}, at {}"
TURN_S = 600.0


class HfdtSessions(SessionRuns):
    """The session runs of a rank.

    `count(share)` is called for each divided training run, `replicated()` for one that every rank does; None forbids
    that.
    """

    def __init__(
        self,
        group: ReplicaGroup,
        exchange: GroupedExchange,
        count: Callable[[Share], None],
        replicated: Callable[[], None] | None,
    ) -> None:
        super().__init__(group, self._passed, replicated)
        self._count, self._exchange = count, exchange
        self._known: weakref.WeakKeyDictionary[Any, trials.TrialHistory] = (
            weakref.WeakKeyDictionary()
        )  # graph -> history
        self._synced: weakref.WeakSet[Any] = weakref.WeakSet()  # sessions whose variables equal rank 0's
        self._now: SessionRun | None = None

    rank_0s = SessionRuns._rank_0s

    def _is_training(self, session: Any, plan: FetchPlan) -> bool:
        return bool(plan.taken)

    def _untrained(self, session: Any, plan: FetchPlan, feeds: dict[Any, Any], run: Callable[[], Any]) -> Any:
        if plan.moves:
            self._synced.discard(session)
        result = run()
        return agreed_numbers(result, self._rank_0s) if read_by_script() else result

    # -- a training run --------------------------------------------------------------------------------------------
    def _trained(self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any]) -> list[Any]:
        if len(plan.taken) >= THREADS:
            raise CaptureError(MANY.format(THREADS - 1, len(plan.taken), where()))
        if plan.elements:
            feeds |= dict(zip(plan.elements, call.plainly(list(plan.elements), feeds), strict=True))
        if call.session not in self._synced:
            self._sync(call, plan)
            self._synced.add(call.session)
        rows = feeding.rows_of(feeds)
        if self._group.size == 1:
            result = self._whole(call, plan, feeds)
            self._count((rows or 0, rows or 0))
            return result
        known = self._known.setdefault(call.session.graph, trials.TrialHistory())
        trial, reason = trials.SessionTrial(), known.refused.get(plan, "")
        if not reason and not (plan in known.tries and rows):
            reason = self._undivided(plan, feeds, rows)
        if not reason and (rows or 0) > 1 and not known.settled(plan, rows or 0):
            trial, reason = self._tried(call, plan, feeds, rows or 0, known)
            if reason:
                known.refused[plan] = reason
        if reason:
            self._by_every_rank(reason)
            return self._whole(call, plan, feeds)
        return self._in_part(call, plan, feeds, rows or 0, known, trial)

    def _undivided(self, plan: FetchPlan, feeds: Mapping[Any, Any], rows: int | None) -> str:
        """Return why the run cannot be divided; "" where it can."""
        fixed = feeding.fixed(feeds, rows)
        if fixed:
            return FIXED.format(f"{fixed}, with a fixed number of rows", where())
        if rows is None or rows < 2:
            return NO_BATCH.format("none" if rows is None else f"{rows}", where())
        moved = plan.moved_by(feeding.divided(feeds, rows), self.gradients)
        return MOVED.format(f"{moved}, which is computed from the batch itself", where()) if moved else ""

    def _tried(
        self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any], rows: int, known: trials.TrialHistory
    ) -> tuple[trials.SessionTrial, str]:
        """Return a trial's result, and why the run cannot be divided. Rank 0 decides for all."""
        variables = plan.variables(call.session.graph)

        def run(part: dict[Any, Any], instead: trials.Recorded | None) -> tuple[list[Any], trials.Recorded]:
            with self._running(now := SessionRun((rows, rows), [], {}, instead)):
                return call.plainly(list(plan.fetches), part), now.recorded or {}

        def write(before: list[Any]) -> None:
            values.write_changed(call.plainly, variables, before, read())

        read, sources = partial(values.read, call.plainly, variables), CellSources(plan, feeds, rows, self.gradients)
        counts = [count for count in divided(rows, self._group.size) if count]
        trial = trials.tried(plan, feeds, counts, known, sources, run, read, write)
        results = {
            "fails": trial.fails,
            "off": 0.0 if plan.noisy else trial.off,
            "readings": {str(number): r.name for number, r in known.readings.items()},
            "outputs": [[list(name), h.name] for name, h in known.outputs.items()],
            "unknown": [list(name) for name in trial.unknown],
            "stuck": trial.stuck,
            "tries": known.tries.get(plan, 0),
        }
        results = self._rank_0s("how a run is read", results)
        # Rank 0's findings replace this rank's: a variable that is read in no fixed order differs between ranks.
        known.replace_findings(
            {int(number): Reading[name] for number, name in results["readings"].items()},
            {(name[0], name[1]): OutputKind[h] for name, h in results["outputs"]},
        )
        trial = replace(trial, unknown=[(name, i) for name, i in results["unknown"]])
        if results["fails"]:
            return trial, FIXED.format(f"a graph that fails on a part of a batch: {results['fails']}", where())
        known.tries[plan] = results["tries"]
        known.rows.setdefault(plan, set()).add(rows)
        if results["stuck"]:
            return trial, STUCK.format(results["stuck"], where())
        return trial, NEITHER.format(where()) if results["off"] > INEXACT else ""

    def _of_whole_batch(
        self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any], known: trials.TrialHistory, given: trials.Cells
    ) -> trials.Cells:
        """Return `given` and the cells that are fetched of the whole batch. The run changes no variable."""
        names = known.whole(plan, given)
        if not names:
            return given
        sources = [known.sources[name] for name in names]
        tensors = [source.tensor for source in sources]
        variables = plan.variables(call.session.graph) if any(source.branches for source in sources) else []
        before = values.read(call.plainly, variables)
        with self._running(SessionRun((1, 1), [], {})):
            fetched = call.plainly(tensors, feeds)
        values.write_changed(call.plainly, variables, before, values.read(call.plainly, variables))
        found = {}
        for name, tensor, value in zip(names, tensors, fetched, strict=True):
            found[name] = cells(tensor, value)[name[1] if tensor.name == name[0] else 0]
        return {**given, **found}

    def _whole(self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any]) -> list[Any]:
        """Run the whole batch on every rank; all ranks apply rank 0's gradient."""
        share = (int(self._group.rank == 0), 1)
        with self._running(SessionRun(share, [t.number for t in plan.taken])):
            result = call.run(list(plan.fetches), feeds)
        return list(agreed_numbers(result, self._rank_0s))

    def _in_part(
        self,
        call: SessionCall,
        plan: FetchPlan,
        feeds: dict[Any, Any],
        rows: int,
        known: trials.TrialHistory,
        trial: trials.SessionTrial,
    ) -> list[Any]:
        given = self._of_whole_batch(call, plan, feeds, known, trial.whole)
        trial = replace(trial, whole=given)
        part = epochs.cut(np.array([0]), np.array([rows]), self._group.rank, self._group.size)
        share = int(part.share[0][0]), rows
        now = SessionRun(share, [t.number for t in plan.taken])
        with self._running(now):
            mine = feeding.between(feeds, rows, int(part.low[0]), int(part.high[0]))
            fetched = _fetched(call, plan, mine, known, given)
        self._count(share)
        combining = Combining(self._exchange, share)
        return _whole_batchs(plan, fetched, known, trial, combining)

    @contextlib.contextmanager
    def _running(self, now: SessionRun) -> Iterator[None]:
        self._now = now
        try:
            yield
        except tf.errors.OpError:
            if now.failure is not None:  # TensorFlow has wrapped it in an error of its own
                raise now.failure from None
            raise
        finally:
            self._now = None

    # -- between ranks ---------------------------------------------------------------------------------------------
    def _passed(self, taken: GradientNode, arrays: Sequence[Any]) -> Sequence[Any]:
        """Combine the gradients of a rank's rows over ranks, in one of TensorFlow's threads."""
        now = self._now
        if now is None:
            raise CaptureError(THREAD.format(threading.current_thread().name))
        if now.recorded is not None:
            now.recorded[taken.number] = [np.array(a) for a in arrays]
            return arrays if now.instead is None else now.instead[taken.number]
        with now.turn:
            now.turn.wait_for(lambda: now.failure or now.order[0] == taken.number, TURN_S)
            try:
                if now.failure is not None or now.order[0] != taken.number:
                    raise now.failure or TimeoutError(f"gradients {now.order[0]} before {taken.number}")
                return self._added(taken, arrays, now)
            except Exception as error:
                now.fail(error)
                raise
            finally:
                now.order.remove(taken.number)
                now.turn.notify_all()

    def _added(self, taken: GradientNode, arrays: Sequence[Any], now: SessionRun) -> Sequence[Any]:
        mine, total = now.share
        known = self._known.get(taken.outputs[0].graph, trials.TrialHistory())
        is_sum = known.readings.get(taken.number) is Reading.STEP_SUM
        weight = float(mine > 0) if is_sum else mine / total
        return added(f"gradients {taken.number}", arrays, taken.sparse, weight, self._exchange)

    def _sync(self, call: SessionCall, plan: FetchPlan) -> None:
        """Assign rank 0's values to a run's variables, which were initialized or restored since the last time."""
        variables = plan.variables(call.session.graph)
        mine = [np.asarray(value) for value in values.read(call.plainly, variables)]
        values.write_changed(call.plainly, variables, self._exchange.rank_0s("variables", mine), mine)


def _fetched(
    call: SessionCall, plan: FetchPlan, mine: dict[Any, Any], known: trials.TrialHistory, given: trials.Cells
) -> list[Any]:
    """Return the fetched values of this rank's rows; of the whole batch where they are `given`."""
    wanted = [tensor for tensor in plan.fetches if not known.left_out(tensor, given)]
    values_ = iter(call.run(wanted, mine))
    return [given[tensor.name, 0] if known.left_out(tensor, given) else next(values_) for tensor in plan.fetches]


def _whole_batchs(
    plan: FetchPlan, given: Sequence[Any], known: trials.TrialHistory, trial: trials.SessionTrial, combining: Combining
) -> list[Any]:
    """Return the fetched values of the whole batch."""
    made = [cells(tensor, value) for tensor, value in zip(plan.fetches, given, strict=True)]
    names = [(tensor.name, i) for tensor, group in zip(plan.fetches, made, strict=True) for i in range(len(group))]
    flat = [cell for group in made for cell in group]
    hows = [OutputKind.WHOLE if n in trial.unknown else known.how(n, cell) for n, cell in zip(names, flat, strict=True)]
    flat = [
        np.asarray(trial.whole.get(name, cell), cell.dtype) if kind is OutputKind.WHOLE else cell
        for name, cell, kind in zip(names, flat, hows, strict=True)
    ]
    whole = iter(combining.whole(flat, hows))
    return [
        rebuilt(tensor, value, [next(whole) for _ in group])
        for tensor, value, group in zip(plan.fetches, given, made, strict=True)
    ]
