"""The operations of a step, written in the script, that need rows of the batch which other ranks hold.

The probe (probe.py) compares the numbers of one batch. A mean over a mask that hides nothing there passes, and so does
a clip whose limit the norm does not reach. Here the rule table (replica/plan.py) reads the traced step with the batch
divided, without running it. What needs a collective before the gradients is found, whatever the batch contains. Code of
Keras is left out: this package has exact versions of its losses, metrics and BatchNorm.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import tensorflow as tf

from fdt.data import source
from fdt.keras.variables import call_converted, tensor_variable
from fdt.ops import flat_logs, is_number
from fdt.process_group import ReplicaGroup
from fdt.typing import Tensor
from hfdt.exactness.gradient_pass import AppliedWithinError, check_applied
from hfdt.exactness.metrics import metric_objects
from hfdt.exactness.script_lines import line_of_script
from hfdt.exactness.untouched import others
from hfdt.worker.step_context import LogSources
from replica.exchange import GroupedExchange
from replica.graph.control_flow import Divider
from replica.graph.emit import Emitter
from replica.graph.emitted import Argument, Undivided, Value
from replica.graph.flatten import WRITES, Flat, Ref, flatten
from replica.placement import PARTIAL, REPLICATE, Partial, Placement, Replicate, Shard, divided
from replica.plan import Array, OpCall, Plan

_SCALED = {
    ("Mul", (Partial, Replicate)),
    ("Mul", (Replicate, Partial)),
    ("RealDiv", (Partial, Replicate)),
    ("DivNoNan", (Partial, Replicate)),
}


@dataclass(frozen=True)
class RowDependence:
    """What a step computes of rows that other ranks hold.

    Attributes:
        operations: Type and line of each operation that needs them: "RealDiv at train.py:7".
        logs: What the numbers that the step returns are computed from.
        unproven: The ids of variables to which the script writes a sum over rows, where ranks average them; of metrics
            to which it writes a mean.
    """

    operations: Sequence[str] = ()
    logs: LogSources = LogSources()
    unproven: frozenset[int] = frozenset()


def row_dependence(trainable: Any, batch: Any, ranks: int) -> RowDependence:
    """Trace the model's step and return its row dependence.

    Sparse and ragged tensors of the batch are taken as replicated: their rows have no placement. So an operation on
    rows that were computed from them alone is not found.

    Args:
        trainable: The model with its variables.
        batch: A global batch.
        ranks: The number of ranks among which batches are divided.
    """
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    leaves = [leaf for part in parts for leaf in _variable_parts(part)]
    names: list[str] = []

    def step(*tensors: Tensor) -> Any:
        remaining = iter(tensors)
        own = tf.nest.map_structure(lambda part: None if part is None else _rebuilt(part, remaining), batch)
        gradients, logs = _results(trainable, own)
        names[:] = logs
        return gradients, list(logs.values())

    try:
        graph = tf.function(step, autograph=False).get_concrete_function(*leaves).graph
    except AppliedWithinError as found:
        return RowDependence([f"apply in a branch or a loop at {found}"])
    flat = flatten(graph)
    rows = int(source.rows(batch))
    divides = {id(part) for part in parts if isinstance(part, tf.Tensor)}
    placed = [_placement(leaf, rows, ranks) if id(leaf) in divides else REPLICATE for leaf in leaves]
    placed += [REPLICATE] * (len(graph.inputs) - len(leaves))
    arguments = [_argument(tensor, placement) for tensor, placement in zip(graph.inputs, placed, strict=True)]
    outputs = dict(zip(names, flat.outputs[len(flat.outputs) - len(names) :], strict=True))
    places, reached = _places(graph), {name: _reached(flat, ref) for name, ref in outputs.items()}
    logs = _sources(trainable.model, places, len(leaves), reached)
    group = cast(ReplicaGroup, SimpleNamespace(rank=0, size=ranks))
    search = _search(flat, arguments, [None] * len(arguments), GroupedExchange(group), "row_dependence")
    return RowDependence(list(dict.fromkeys(search.found)), logs, _unproven(trainable, places, search.writes))


def _variable_parts(part: Any) -> list[Tensor]:
    """Return the tensors of a batch's tensor; a sparse one's shape is a constant, of which others follow."""
    return [part.indices, part.values] if isinstance(part, tf.SparseTensor) else tf.nest.flatten(part, True)


def _rebuilt(part: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a tensor like `part` of a batch, of the next of `tensors`."""
    if isinstance(part, tf.SparseTensor):
        return tf.SparseTensor(next(tensors), next(tensors), part.dense_shape.numpy())
    return tf.nest.pack_sequence_as(part, [next(tensors) for _ in _variable_parts(part)], expand_composites=True)


def _results(trainable: Any, batch: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the gradients that the step passes to optimizers, which do not apply them, and its numeric logs.

    Raises:
        AppliedWithinError: The step applies gradients in a branch or a loop, where ranks cannot exchange them.
    """
    gradients: list[Tensor] = []
    graph = tf.compat.v1.get_default_graph()

    def collect(_: Any, given: Sequence[Tensor], __: Any) -> None:
        check_applied(graph)
        gradients.extend(tf.convert_to_tensor(g) for g in given if g is not None)

    flavor, model = trainable.flavor, trainable.model
    with contextlib.ExitStack() as stack:
        for optimizer in flavor.optimizers(model):
            stack.enter_context(flavor.replace_apply(optimizer, collect))
        logs = call_converted(flavor.name, model.train_step, batch)
    return gradients, {name: tf.convert_to_tensor(v) for name, v in flat_logs(logs).items() if is_number(v)}


def _places(graph: Any) -> dict[int, int]:
    """Return the index of the graph's input for each tensor outside that it captures, by the tensor's id."""
    place = {id(tensor): index for index, tensor in enumerate(graph.inputs)}
    return {id(outer): place[id(tensor)] for outer, tensor in graph.captures}


def _unproven(trainable: Any, places: Mapping[int, int], writes: set[tuple[int | None, str]]) -> frozenset[int]:
    """Return `RowDependence.unproven`, of what `_Search.writes` has."""
    kinds = [*((v, "Sum") for v in others(trainable)), *((v, "Mean") for v in trainable.metrics)]
    found = ((tensor_variable(v), kind) for v, kind in kinds)
    return frozenset(id(v) for v, kind in found if (places.get(id(v.handle)), kind) in writes)


def _sources(model: Any, places: Mapping[int, int], leaves: int, reached: Mapping[str, set[int]]) -> LogSources:
    """Return what the logs are computed from.

    Args:
        model: The model.
        places: The indices of the inputs of the traced step that are variables, by the handle's id.
        leaves: The number of tensors of a batch, which are the first inputs.
        reached: By log, the indices of the inputs that it is computed from.
    """
    objects = metric_objects(model)
    states = [{places.get(id(tensor_variable(v).handle), -1) for v in m.variables} - {-1} for m in objects]
    every = set[int]().union(*states)
    plain = frozenset(name for name, inputs in reached.items() if not inputs & every)
    batch = set(range(leaves))
    one = {
        name: next((i for i, state in enumerate(states) if inputs & every <= state and not inputs & batch), -1)
        for name, inputs in reached.items()
        if name not in plain
    }
    return LogSources(
        plain=plain,
        fixed=frozenset(name for name in plain if not reached[name] & batch),
        metrics={name: index for name, index in one.items() if index >= 0},
        mixed=frozenset(name for name, index in one.items() if index < 0),
    )


def _placement(leaf: Tensor, rows: int, ranks: int) -> Placement:
    divides = leaf.shape.rank and leaf.shape[0] == rows
    return Shard(0, divided(rows, ranks)) if divides else REPLICATE


def _argument(tensor: Tensor, placement: Placement) -> Argument:
    known = tensor.dtype not in (tf.resource, tf.variant) and tensor.shape.rank is not None
    return Argument(placement, tuple(tensor.shape.as_list()) if known else None, tensor.dtype)


def _reached(flat: Flat, ref: Ref) -> set[int]:
    """Return the indices of the arguments that an output is computed from."""
    return {argument for n in flat.behind([ref[0]]) if (argument := flat.nodes[n].argument) is not None}


def _search(*emitter_arguments: Any) -> "_Search":
    """Return a search that has run; loops and branches are divided where they can be, as in control_flow.emitted."""
    search: _Search = _DividingSearch(*emitter_arguments)
    try:
        search.run()
    except Undivided:
        search = _Search(*emitter_arguments)
        search.run()
    return search


class _Search(Emitter):
    """An emitter that records the script's operations whose inputs would be replicated; its graph is not used.

    An assignment is no such operation: what a rank's part adds to a variable is added over ranks (assigned_state.py,
    metrics.py). Batches that are concatenated stay divided.

    `writes`: the index of an argument, a variable, and "Sum" or "Mean": the script writes such numbers over rows to it.
    """

    _texts = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: list[str] = []
        self.writes: set[tuple[int | None, str]] = set()
        self._kinds: dict[int, set[str]] = {}  # of Partial outputs

    def _planned(self, number: int, values: list[Value]) -> Plan | list[Array] | None:
        found = super()._planned(number, values)
        node = self._flat.nodes[number]
        op = node.op
        if isinstance(found, Plan):
            self._note_kinds(number, found, set[str]().union(*(self._kinds.get(n, ()) for n, _ in node.inputs)))
        if isinstance(found, Plan) and not op.type.startswith(WRITES):
            pairs = zip(values, found.inputs, strict=True)
            line = line_of_script(op) if any(v.placement not in (p, REPLICATE) for v, p in pairs) else ""
            self.found += [f"{op.type} at {line}"] if line else []
        return found

    def _note_kinds(self, number: int, found: Plan, kinds: set[str]) -> None:
        """Note whether the script's sums or means over rows are in an output, or are written to a variable."""
        node = self._flat.nodes[number]
        if node.op.type.startswith(WRITES):
            variable = self._flat.nodes[node.inputs[0][0]].argument
            self.writes.update((variable, kind) for kind in kinds if line_of_script(node.op))
        elif isinstance(found.output(0), Partial):
            own = any(isinstance(each, Shard) for each in found.inputs) and line_of_script(node.op)
            self._kinds[number] = kinds | ({"Mean" if node.op.type == "Mean" else "Sum"} if own else set())

    def _replicate(self, refs: dict[Ref, None]) -> None:
        """Keep the placements: an operation of the script counts, too, where a gradient needs the same sum before."""
        before = {ref: self._values[ref] for ref in refs}
        super()._replicate(refs)
        for ref, value in before.items():
            self._values[ref] = replace(value, whole=self._values[ref].whole)

    def _plan(self, call: OpCall) -> Plan:
        return _rows_end_to_end(call) or _scaled_sum(call) or super()._plan(call)

    def _forks(self, refs: Sequence[Ref]) -> list[Ref]:
        return []


class _DividingSearch(_Search, Divider):
    """The search that divides loops and branches."""


def _scaled_sum(call: OpCall) -> Plan | None:
    """Return the plan of a sum over rows times a number that all ranks have, such as a weight that a callback raises.

    The rule table adds over ranks first, since the number may be infinite. Here nothing runs.
    """
    kinds = tuple(type(arg.placement) for arg in call.args)
    if (call.op, kinds) in _SCALED:
        return Plan(tuple(arg.placement for arg in call.args), (PARTIAL,))
    return None


def _rows_end_to_end(call: OpCall) -> Plan | None:
    """Return the plan of a rank that concatenates its own rows, as a GAN does: batches, in another order of rows."""
    *tensors, axis = call.args
    rows = [(tensor.shape or (None,))[0] for tensor in tensors]
    if call.op != "ConcatV2" or axis.value is None or int(axis.value) or None in rows:
        return None
    own = [
        t.placement if isinstance(t.placement, Shard) else Shard(0, divided(n or 0, call.size))
        for t, n in zip(tensors, rows, strict=True)
    ]
    if any(isinstance(t.placement, Partial) for t in tensors) or any(shard.axis for shard in own):
        return None
    sizes = tuple(map(sum, zip(*(shard.sizes for shard in own), strict=True)))
    return Plan((*own, REPLICATE), (Shard(0, sizes),))
