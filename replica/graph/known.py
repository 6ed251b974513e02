"""Values of a function's tensors that are known before it runs: constants, shapes, integer arguments."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from replica.graph.emitted import Argument
from replica.graph.flatten import Flat, Ref
from replica.graph.fold import LARGEST, folded, is_folded
from replica.plan import Array


class KnownValues:
    """The known values, computed when a rule reads them.

    Args:
        flat: The function.
        arguments: The arguments of the call.
        values: The arguments' values, None where they must not be used.

    Attributes:
        used: Arguments whose values were read.
    """

    def __init__(self, flat: Flat, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
        self._flat, self._arguments, self._values = flat, arguments, values
        self._found: dict[Ref, Array | None] = {}
        self.used: set[int] = set()

    def found(self, ref: Ref) -> Array | None:
        """Return a value that was read or recorded before."""
        return self._found.get(ref)

    def note(self, ref: Ref, value: Array) -> None:
        """Record the value of a tensor, for instance of a shape."""
        self._found[ref] = value

    def value(self, ref: Ref) -> Array | None:
        """Return the value of a replicated tensor; None where it is known only at run time."""
        stack = [ref]
        while stack:
            last = stack[-1]
            missing = [] if last in self._found else self._unknown_inputs(last)
            if missing:
                stack.extend(missing)
                continue
            if last not in self._found:
                self._find(last)
            stack.pop()
        return self._found[ref]

    def _unknown_inputs(self, ref: Ref) -> list[Ref]:
        """Return the inputs of a folded operation that were not read before."""
        node = self._flat.nodes[ref[0]]
        if node.argument is not None or not is_folded(node.op):
            return []
        return [each for each in node.inputs if each not in self._found]

    def _find(self, ref: Ref) -> None:
        self._found[ref] = None
        node = self._flat.nodes[ref[0]]
        if node.argument is not None:
            self._found[ref] = self._of_argument(node.argument)
        elif is_folded(node.op):
            inputs = [value for value in map(self._found.get, node.inputs) if value is not None]
            if len(inputs) == len(node.inputs):
                for index, value in enumerate(folded(node.op, inputs)):
                    self._found[ref[0], index] = value if value.size <= LARGEST else None

    def _of_argument(self, index: int) -> Array | None:
        value = self._values[index]
        if value is None or not self._arguments[index].dtype.is_integer:
            return None
        self.used.add(index)
        return np.asarray(value)
