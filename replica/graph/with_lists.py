"""The emitter of functions whose TensorLists and Optionals are divided like their elements."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fdt.compat.tensorflow import constant_op
from replica.graph.emit import Emitter
from replica.graph.emitted import Undivided, Value
from replica.graph.flatten import Ref
from replica.graph.lists import described, emptied, is_empty, is_list
from replica.placement import REPLICATE, Placement, Shard
from replica.plan import OpCall, Plan, Shape, plan


class ListEmitter(Emitter):
    """The emitter of one function with divided lists. No collective can send a list.

    Raises:
        Undivided: An operation needs a divided list whole or a whole list divided; or the function returns a divided
            list.
    """

    def _plan(self, call: OpCall) -> Plan:
        return plan(call, texts=self._texts)

    def _emit(self, number: int) -> list[Ref]:
        missing = super()._emit(number)
        if not missing:
            self._note_lists(number)
        return missing

    def _note_lists(self, number: int) -> None:
        node = self._flat.nodes[number]
        known = [partial(self._known.value, ref) for ref in node.inputs]
        values = [self._values[ref] for ref in node.inputs]
        for index, traced in enumerate(node.op.outputs):
            if is_list(traced):
                self._values[number, index] = described(node, self._values[number, index], values, known)
        if node.op.type == "TensorListPopBack" and values[0].items:
            item = np.asarray(values[0].items[0], node.op.outputs[1].dtype.as_numpy_dtype)
            self._known.note((number, 1), item)
            self._values[number, 1] = replace(self._values[number, 1], tensor=constant_op.constant(item))

    def _input(self, ref: Ref, target: Placement) -> Any:
        value, node = self._values[ref], self._flat.nodes[ref[0]]
        if not is_list(value.tensor) or value.placement == target or not is_empty(node):
            return super()._input(ref, target)
        if not isinstance(target, Shard) or len(node.inputs) < 2:
            return value.tensor
        made_for, count = self._known.value(node.inputs[0]), self._values[node.inputs[1]].tensor
        return emptied(self.graph, node, target, self.rank, made_for, count)

    def _converted(self, value: Value, target: Placement) -> Any:
        if is_list(value.tensor) and value.placement != target and isinstance(target, Shard):
            raise Undivided("a list of replicated elements would have to be divided")
        return super()._converted(value, target)

    def _is_small_sum(self, value: Value) -> bool:
        return not is_list(value.tensor) and super()._is_small_sum(value)

    def _replicate(self, refs: dict[Ref, None]) -> None:
        if any(is_list(self._values[ref].tensor) for ref in refs):
            raise Undivided("an operation needs a replicated list")
        super()._replicate(refs)

    def _emit_outputs(self) -> list[tuple[Placement, Shape | None]]:
        values = [self._values[ref] for ref in self._flat.outputs]
        if any(is_list(value.tensor) and value.placement is not REPLICATE for value in values):
            raise Undivided("the function returns a list")
        return super()._emit_outputs()
