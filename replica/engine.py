"""The placement engine, which installs the placements in TensorFlow while a script runs."""

import contextlib
from collections.abc import Callable, Iterator

from client_shim.replica.steps import where
from fdt.compat.tensorflow import execute, pywrap_tfe
from fdt.patches import Patch, patched, replace
from replica import reads, tape, tensors
from replica.batches import BatchComparison
from replica.convert import Converter
from replica.eager import Eager
from replica.entry import RowEntry
from replica.exchange import GroupedExchange
from replica.functions import Functions
from replica.input import InputDivision
from replica.report import DivisionReport
from replica.step_count import OptimizerUpdates, SampleCount
from replica.variables import ReplicatedVariables


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
        self.batches = BatchComparison(exchange)
        self._input = InputDivision(exchange, self.report, self.batches)
        self.entry = RowEntry(self.converter, self._input, self.batches)
        self.samples = SampleCount(self.entry)
        self.variables = ReplicatedVariables(exchange, stepped, self.samples)
        self.updates = OptimizerUpdates(self.samples)
        self._eager = Eager(self.converter, self.entry, self.variables, self.report, own)
        self._functions = Functions(self.converter, self.entry, self.variables, self.updates, self.report, own)

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
