"""A rank of a replicated script: the placements, the checks, and the counts and notes for the end of the run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from client_shim.replica.steps import where
from fdt.errors import CaptureError
from fdt.patches import patched
from fdt.process_group import ReplicaGroup
from fdt.report import quantity
from replica.engine import PlacementEngine
from replica.exchange import GroupedExchange
from replica.step_count import StepCount

UNDIVIDED = (
    "the training step at {where} has nothing that ranks can divide: a batch of a dataset, an argument of a "
    "tf.function, or a matrix product, with at least as many rows as ranks. With --allow-replicated every rank does "
    "the whole work"
)


MIXED = (
    "a step is an update by a Keras optimizer. Not counted: {assignments} after a gradient, made by hand, to add up "
    "gradients, or in updates that were skipped for NaN or infinity"
)
WITHOUT_OPTIMIZER = (
    "a step is an assignment of weights after a gradient; a call of a tf.function is one step, also if it has a loop"
)


class PlacedRank:
    """The implementation of client_shim.replica.rank.ReplicaRank by placements.

    Args:
        group: The ranks.
        exchange: The collectives of the placements.
        options: The command line's: rule, allow_replicated.
        say: Prints a line for the user; called on rank 0 only.
        sessions: Makes the context in which the engine runs TensorFlow 1's sessions, without placements, from two
            functions: one counts a divided step, the other a replicated one.
    """

    skippable_regions = None

    def __init__(
        self,
        group: ReplicaGroup,
        exchange: GroupedExchange,
        options: Mapping[str, str],
        show_line: Callable[[str], None],
        sessions: Callable[[Callable[[Any], None], Callable[[], None]], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._group = group
        self._show_line = show_line if group.rank == 0 else lambda line: None
        self._allow_replicated = options.get("allow_replicated") == "1"
        self._algorithm = options["rule"]
        self._replicated = self._in_sessions = 0
        self._in_runs = 0  # samples of sessions
        self._engine = PlacementEngine(exchange, self._stepped)
        self._refused: CaptureError | None = None
        self._sessions = sessions(self._count_session, self._count_replicated)
        self._noted = False

    @contextlib.contextmanager
    def in_tensorflow(self) -> Iterator[None]:
        """Install the placements and the session hooks."""
        with self._engine.installed(), self._sessions:
            yield

    def in_keras(self, flavor: str) -> contextlib.AbstractContextManager[None]:
        """Within the context, updates of Keras's optimizers are counted. The rest of Keras needs no patches."""
        return patched(self._engine.updates.patches(flavor))

    def counts(self) -> Mapping[str, Any]:
        """Return steps, samples, replicated and sent_bytes of this rank so far, and what the run's end shows."""
        known = not self._count.repeats
        return {
            "steps": self.steps(),
            "samples": self._in_runs + (self._engine.samples.samples if known else 0),
            "replicated": self._replicated,
            "sent_bytes": self._group.sent_bytes,
            "algorithm": self._algorithm,
            "notes": [*self._engine.report.lines(), *self._counted()],
        }

    @property
    def _count(self) -> StepCount:
        updates = self._engine.updates
        return updates if updates.steps else self._engine.variables.count

    def _counted(self) -> list[str]:
        """Return a line about what the steps are, where the script assigns weights without an optimizer of Keras."""
        updates, assigned = self._engine.updates.steps, self._engine.variables.steps
        if updates and assigned > updates:
            return [MIXED.format(assignments=quantity(assigned - updates, "assignment"))]
        return [WITHOUT_OPTIMIZER] if assigned and not updates else []

    def steps(self) -> int:
        return self._count.steps + self._in_sessions

    def in_line(self) -> bool:
        return not (self._engine.variables.training or self._in_sessions)

    def end(self) -> None:
        """Compare all ranks' variables once more. Raises a step's refusal again, which the script may have caught."""
        if self._refused is not None:
            raise self._refused
        if self._engine.variables.steps:
            self._engine.variables.check()

    def _stepped(self) -> None:
        """Handle a step's first assignment. Raises CaptureError where no rows were divided, unless that is allowed.

        One rank divides nothing.
        """
        if self._group.size == 1:
            return
        entry = self._engine.entry
        if entry.first is None:
            if not self._allow_replicated:
                self._refused = CaptureError(UNDIVIDED.format(where=where()))
                raise self._refused
            self._replicated += 1
            return
        if line := self._engine.batches.step(self._engine.variables.steps + 1):
            self._show_line(line)
        if not self._noted:
            self._noted = True
            at, what, rows = entry.first
            self._show_line(
                f"replicated: {at}, {what}, {quantity(rows, 'row')} on {quantity(self._group.size, 'rank')}"
            )

    def _count_session(self, share: Any) -> None:
        self._in_sessions += 1
        self._in_runs += share[0]

    def _count_replicated(self) -> None:
        self._replicated += 1
