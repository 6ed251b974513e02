"""A rank of a replicated script: the placements, the checks, and the counts and notes for the end of the run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from client_shim.replica.steps import where
from fdt.compat.tensorflow import execute, pywrap_tfe
from fdt.errors import CaptureError
from fdt.patches import Patch, patched, replace
from fdt.process_group import ReplicaGroup
from fdt.report import quantity
from replica import reads, tape, tensors
from replica.convert import Converter
from replica.eager import Eager
from replica.entry import RowEntry
from replica.exchange import GroupedExchange
from replica.functions import Functions
from replica.input import InputDivision
from replica.report import DivisionReport
from replica.variables import ReplicatedVariables

UNDIVIDED = (
    "the training step at {where} has nothing that ranks can divide: a batch of a dataset, an argument of a "
    "tf.function, or a matrix product, with at least as many rows as ranks. With --allow-replicated every rank does "
    "the whole work"
)


class PlacementEngine:
    """The division of a script's computations over ranks.

    Args:
        exchange: The collectives.
        stepped: Called when a training step begins to assign variables.
    """

    def __init__(self, exchange: GroupedExchange, stepped: Callable[[], None]) -> None:
        own = execute.execute
        self.report = DivisionReport(where)
        self.converter = Converter(exchange, own)
        self._input = InputDivision(exchange, self.report)
        self.entry = RowEntry(self.converter, self._input)
        self.variables = ReplicatedVariables(exchange, stepped)
        self._eager = Eager(self.converter, self.entry, self.variables, self.report, own)
        self._functions = Functions(self.converter, self.entry, self.variables, self.report, own)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let tensors have placements while the context lasts."""
        tensors.install()
        with contextlib.ExitStack() as stack:
            fast = self._eager.fast_path(pywrap_tfe.TFE_Py_FastPathExecute)
            replace(stack, pywrap_tfe, "TFE_Py_FastPathExecute", fast)
            for name in ("execute", "quick_execute"):  # callbacks of operations call the second
                replace(stack, execute, name, self._eager.execute)
            stack.callback(tape.install())
            stack.enter_context(reads.global_reads(self.converter))
            stack.enter_context(self.entry.loops())
            stack.enter_context(patched(self._patches()))
            yield

    def _patches(self) -> list[Patch]:
        return [
            *tape.patches(self.variables.begin_training),
            *reads.patches(self.converter),
            *self._eager.patches(),
            *self._input.patches(),
            *self.entry.patches(),
            *self.variables.patches(),
            *self._functions.patches(),
        ]


class SessionHooks(Protocol):
    """The patches of an engine for TensorFlow 1's sessions, in which placements are not used."""

    def installed(self) -> contextlib.AbstractContextManager[None]: ...


class PlacedRank:
    """The implementation of client_shim.replica.rank.ReplicaRank by placements.

    Args:
        group: The ranks.
        exchange: The collectives of the placements.
        options: The command line's: rule, allow_replicated.
        say: Prints a line for the user; called on rank 0 only.
        sessions: Makes the SessionHooks from two functions: one counts a divided step, the other a replicated one.
    """

    skippable_regions = None

    def __init__(
        self,
        group: ReplicaGroup,
        exchange: GroupedExchange,
        options: Mapping[str, str],
        show_line: Callable[[str], None],
        sessions: Callable[[Callable[[Any], None], Callable[[], None]], SessionHooks],
    ) -> None:
        self._group = group
        self._show_line = show_line if group.rank == 0 else lambda line: None
        self._allow_replicated = options.get("allow_replicated") == "1"
        self._algorithm = options["rule"]
        self._replicated = self._samples = self._in_sessions = 0
        self._engine = PlacementEngine(exchange, self._stepped)
        self._refused: CaptureError | None = None
        self._sessions = sessions(self._count_session, self._count_replicated)
        self._noted = False

    @contextlib.contextmanager
    def in_tensorflow(self) -> Iterator[None]:
        """Install the placements and the session hooks."""
        with self._engine.installed(), self._sessions.installed():
            yield

    def in_keras(self, flavor: str) -> contextlib.AbstractContextManager[None]:
        """Install nothing: Keras's layers, losses, metrics and optimizers are operations like any other."""
        return contextlib.nullcontext()

    def counts(self) -> Mapping[str, Any]:
        """Return steps, samples, replicated and sent_bytes of this rank so far, and what the run's end shows."""
        return {
            "steps": self.steps(),
            "samples": self._samples,
            "replicated": self._replicated,
            "sent_bytes": self._group.sent_bytes,
            "algorithm": self._algorithm,
            "notes": self._engine.report.lines(),
        }

    def steps(self) -> int:
        """Return the number of training steps so far."""
        return self._engine.variables.steps + self._in_sessions

    def end(self) -> None:
        """Compare all ranks' variables once more. Raises a step's refusal again, which the script may have caught."""
        if self._refused is not None:
            raise self._refused
        if self._engine.variables.steps:
            self._engine.variables.check()

    def _stepped(self) -> None:
        """Handle a step's first assignment. Raises CaptureError where no rows were divided, unless that is allowed."""
        entry = self._engine.entry
        if entry.first is None:
            if not self._allow_replicated:
                self._refused = CaptureError(UNDIVIDED.format(where=where()))
                raise self._refused
            self._replicated += 1
            return
        if not self._noted:
            self._noted = True
            at, what, rows = entry.first
            self._show_line(
                f"replicated: {at}, {what}, {quantity(rows, 'row')} on {quantity(self._group.size, 'rank')}"
            )
        self._samples += entry.rows[0]

    def _count_session(self, share: Any) -> None:
        self._in_sessions += 1
        self._samples += share[0]

    def _count_replicated(self) -> None:
        self._replicated += 1
