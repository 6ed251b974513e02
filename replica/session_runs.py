"""The base class of runs of TensorFlow 1 sessions (client_shim/replica/sessions), for both engines."""

import abc
import threading
from collections.abc import Callable
from typing import Any

from client_shim.replica.sessions import feeds as feeding
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.gradients import Gradients, Pass
from client_shim.replica.sessions.plans import FetchPlan, FetchPlans, flat_fetches
from client_shim.replica.steps import where
from fdt.errors import CaptureError
from fdt.process_group import ReplicaGroup

THREAD = "sessions must train in the script's main thread. Received: a training run in thread {}"
COPY = "a graph that was saved and imported cannot be divided. Received: a training run of one, at {}"


class SessionRuns(abc.ABC):
    """The session runs of a rank.

    Args:
        group: The ranks.
        passed: Called with the gradients that a run computes; returns those with which the run continues.
        replicated: Called for a training run that is replicated on every rank; None where that is not allowed.
    """

    def __init__(self, group: ReplicaGroup, passed: Pass, replicated: Callable[[], None] | None) -> None:
        self._group, self._replicated = group, replicated
        self.gradients = Gradients(passed)
        self._plans = FetchPlans(self.gradients)

    def run(
        self,
        original: Any,
        session: Any,
        fetches: Any,
        feed_dict: Any = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Replace Session.run."""

        def plainly() -> Any:
            return original(session, fetches, feed_dict, options, run_metadata)

        asked = self._plans.asked(session, fetches, feed_dict)
        if asked is None:
            return plainly()
        plan, feeds, build = asked
        if self._is_training(session, plan):
            if not in_main():
                raise CaptureError(THREAD.format(threading.current_thread().name))
            call = SessionCall(original, session, options, run_metadata)
            return build(self._trained(call, plan, feeding.arrays(feeds)))
        if plan.moves and plan.copies:
            raise CaptureError(COPY.format(where()))
        return self._untrained(session, plan, feeds, plainly)

    def trains(self, session: Any, fetches: Any) -> bool:
        """Return whether a run of `fetches` computes gradients."""
        return bool(self._plans.of(session.graph, flat_fetches(session.graph, fetches)[0], ()).taken)

    @abc.abstractmethod
    def _is_training(self, session: Any, plan: FetchPlan) -> bool: ...

    @abc.abstractmethod
    def _trained(self, call: SessionCall, plan: FetchPlan, feeds: dict[Any, Any]) -> list[Any]:
        """Return the values of `plan.fetches` from a training run."""

    @abc.abstractmethod
    def _untrained(self, session: Any, plan: FetchPlan, feeds: dict[Any, Any], run: Callable[[], Any]) -> Any:
        """Return the values of `plan.fetches` from a run that does not train; `run()` executes it on this rank."""

    def _rank_0s(self, what: str, value: Any) -> Any:
        return self._group.broadcast(value, what)

    def _by_every_rank(self, reason: str) -> None:
        """Count a training run that is replicated on every rank. Raises CaptureError where that is not allowed."""
        if self._replicated is None:
            raise CaptureError(reason)
        self._replicated()


def in_main() -> bool:
    """Return whether this is the main thread, in which the script runs."""
    return threading.current_thread() is threading.main_thread()
