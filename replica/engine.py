"""Installs the placements in TensorFlow for the time that a script runs."""

import contextlib
from collections.abc import Iterator

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import execute

from client_shim.replica.replacing import replace
from client_shim.replica.steps import where
from fdt.patches import patched
from replica import reads, tape, tensors
from replica.convert import Converter
from replica.eager import Eager
from replica.entry import Entry
from replica.exchange import Exchange
from replica.functions import Functions
from replica.group import ReplicaGroup
from replica.report import Report


class Engine:
    """Divides what a script computes over the ranks of a group.

    Args:
        group: The ranks.
        fp16: Send large float32 sums as float16.
    """

    def __init__(self, group: ReplicaGroup, *, fp16: bool = False) -> None:
        self._execute = execute.execute
        self.report = Report(where)
        self.converter = Converter(Exchange(group, fp16=fp16), self._execute)
        self.entry = Entry(self.converter)
        self._eager = Eager(self.converter, self.report, self._execute)
        self._functions = Functions(self.converter, self.entry, self.report, self._execute)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within, tensors carry placements."""
        tensors.install()
        with contextlib.ExitStack() as stack:
            fast = self._eager.fast_path(pywrap_tfe.TFE_Py_FastPathExecute)
            replace(stack, pywrap_tfe, "TFE_Py_FastPathExecute", fast)
            replace(stack, execute, "execute", self._eager.execute)
            stack.callback(tape.install())
            stack.enter_context(reads.global_reads(self.converter))
            replaced = (tape.patches(), reads.patches(self.converter), self._eager.patches(), self.entry.patches())
            stack.enter_context(patched(patch for patches in replaced for patch in patches))
            stack.enter_context(patched(self._functions.patches()))
            yield
