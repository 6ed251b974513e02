"""A traced function as one list of operations, in which the functions that it calls are inlined."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import function_def_to_graph, tensor_shape_pb2
from fdt.ops import reached

Ref = tuple[int, int]  # (number of a node, index of its output)
# Random operations whose state TensorFlow keeps in the operation's kernel.
RANDOM = frozenset(
    "AllCandidateSampler FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler "
    "Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal "
    "RandomUniform RandomUniformInt SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 "
    "ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler".split()
)
WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStrided")  # to a variable
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NAMES = ("Identity", "IdentityN")  # treated as other names of their inputs
SOURCES = (
    "IteratorGetNext",
    "OptionalGetValue",
)  # read an element of an iterator, or of an Optional that an iterator made


@dataclass
class GraphNode:
    """An operation of a flattened function.

    Attributes:
        op: The operation of the traced graph.
        inputs: The outputs of other nodes that it takes.
        controls: The nodes that it runs after.
        argument: The index of the function's argument that it stands for.
    """

    op: Any
    inputs: list[Ref] = field(default_factory=list)
    controls: set[int] = field(default_factory=set)
    argument: int | None = None
    _draw: tuple[int, Any] | None = None  # for an operation of RANDOM: its state, which outlives emissions

    def draw_in(self, loop: int, make: Callable[[Any], Any]) -> Any:
        """Return the function `make(op)` that keeps the operation's state; a new one for a new `loop`."""
        if self._draw is None or self._draw[0] != loop:
            self._draw = loop, make(self.op)
        return self._draw[1]


@dataclass
class Flat:
    """A function's operations in an order in which each follows its inputs."""

    nodes: list[GraphNode]
    outputs: list[Ref]
    controls: set[int]

    def behind(self, start: Iterable[int], goes_on: Callable[[GraphNode], bool] = lambda _: True) -> set[int]:
        """Return the nodes from which others are computed, with these; only those through which it `goes_on`."""

        def through(numbers: Iterable[int]) -> list[int]:
            return [n for n in numbers if self.nodes[n].argument is not None or goes_on(self.nodes[n])]

        return reached(through(start), lambda number: through(before for before, _ in self.nodes[number].inputs))

    def sources(self) -> list[int]:
        """Return the operations that draw an element from an iterator which is an argument of the function."""
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.argument is None and node.op.type in SOURCES and self.nodes[node.inputs[0][0]].argument is not None
        ]

    def assigned(self) -> list[int]:
        """Return the arguments that are variables and that an operation assigns."""
        refs = [ref for n in self.nodes if n.argument is None and n.inputs for ref in written_by(n)]
        found = {self.nodes[number].argument for number, _ in refs}
        return sorted(argument for argument in found if argument is not None)

    def has(self, types: Iterable[str]) -> bool:
        """Return whether some operation is of these types."""
        wanted = frozenset(types)
        return any(node.argument is None and node.op.type in wanted for node in self.nodes)


def flatten(graph: Any, count: int | None = None) -> Flat:
    """Return the operations of a FuncGraph that its outputs and side effects need.

    Args:
        graph: The graph.
        count: The outputs of the function. A tape adds others to its graph, which the backward pass needs; None: all.
    """
    builder = _Builder()
    arguments = [builder.argument(tensor, index) for index, tensor in enumerate(graph.inputs)]
    outputs, controls = builder.add(graph, arguments, set())
    outputs = outputs[:count]
    waited = controls.union(*(name.after for name in outputs))
    return _pruned(Flat(builder.nodes, [name.ref for name in outputs], waited))


def written_by(node: GraphNode) -> list[Ref]:
    """Return the inputs that are variables which a node assigns; all variables for a branch or loop that assigns."""
    if node.op.type.startswith(WRITES):
        return node.inputs[:1]
    inner = [function_graph(node.op.graph, name) for name in functions_of(node.op)]
    if not any(_writes(graph) for graph in inner):
        return []
    return [ref for ref, t in zip(node.inputs, node.op.inputs, strict=True) if t.dtype == tf.resource]


def _writes(graph: Any) -> bool:
    return any(
        op.type.startswith(WRITES) or any(_writes(function_graph(graph, n)) for n in functions_of(op))
        for op in graph.get_operations()
    )


def functions_of(op: Any) -> list[str]:
    """Return the names of the functions that an operation may call."""
    attrs = op.node_def.attr.values()
    return [f.name for attr in attrs for f in (attr.func, *attr.list.func) if f.name]


def function_graph(graph: Any, name: str) -> Any:
    """Return the graph of a function of `graph`; functions of tf.nn.ctc_loss have a definition only."""
    function = graph._get_function(name)
    if hasattr(function, "graph"):
        return function.graph
    with graph.as_default():  # the functions that this one calls are in `graph`
        return function_def_to_graph(function.definition)


@dataclass(frozen=True)
class _Name:
    """A tensor of a graph. `after`: nodes that a user of the tensor by this name must also wait for."""

    ref: Ref
    after: frozenset[int] = frozenset()


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []

    def argument(self, tensor: Any, index: int) -> _Name:
        self.nodes.append(GraphNode(tensor.op, argument=index))
        return _Name((len(self.nodes) - 1, 0))

    def add(self, graph: Any, arguments: Sequence[_Name], before: set[int]) -> tuple[list[_Name], set[int]]:
        """Add a graph's operations; return its outputs, and the nodes that its end waits for."""
        names = {(t.op.name, t.value_index): name for t, name in zip(graph.inputs, arguments, strict=True)}
        done = {t.op.name: {name.ref[0], *name.after} for t, name in zip(graph.inputs, arguments, strict=True)}
        for op in _in_order(graph):
            if op.name in done:
                continue
            inputs = [names[t.op.name, t.value_index] for t in op.inputs]
            controls = set().union(*(done[c.name] for c in op.control_inputs))
            if op.op_def.is_stateful:
                controls |= before
            if op.type in _NAMES:
                outputs = [_Name(name.ref, name.after | controls) for name in inputs]
                done[op.name] = set().union(*({name.ref[0], *name.after} for name in outputs))
            elif op.type in _CALLS:
                inner = function_graph(graph, op.get_attr("f").name)
                outputs, ends = self.add(inner, inputs, controls)
                done[op.name] = ends.union(controls, *({name.ref[0], *name.after} for name in outputs))
            else:
                controls = controls.union(*(name.after for name in inputs))
                self.nodes.append(GraphNode(op, [name.ref for name in inputs], controls))
                number = len(self.nodes) - 1
                outputs = [_Name((number, i)) for i in range(len(op.outputs))]
                done[op.name] = {number}
            names.update({(op.name, i): name for i, name in enumerate(outputs)})
        ends = set().union(*(done[op.name] for op in graph.control_outputs)) if graph.control_outputs else set()
        return [names[t.op.name, t.value_index] for t in graph.outputs], ends


def _in_order(graph: Any) -> list[Any]:
    """Return the operations, each after its inputs; graphs made of function definitions guarantee no order."""
    ordered: list[Any] = []
    state: dict[str, bool] = {}  # False: on the stack, True: done
    for start in graph.get_operations():
        stack = [start]
        while stack:
            op = stack[-1]
            if state.get(op.name):
                stack.pop()
                continue
            missing = [o for o in (*(t.op for t in op.inputs), *op.control_inputs) if not state.get(o.name)]
            if missing and op.name not in state:
                state[op.name] = False
                stack.extend(missing)
            else:
                state[op.name] = True
                ordered.append(op)
                stack.pop()
    return ordered


def _pruned(flat: Flat) -> Flat:
    ends = [*(number for number, _ in flat.outputs), *flat.controls]
    needed = reached(ends, lambda number: [*(n for n, _ in flat.nodes[number].inputs), *flat.nodes[number].controls])
    needed |= {number for number, node in enumerate(flat.nodes) if node.argument is not None}
    new = {old: number for number, old in enumerate(sorted(needed))}
    nodes = [flat.nodes[old] for old in sorted(needed)]
    for node in nodes:
        node.inputs = [(new[n], i) for n, i in node.inputs]
        node.controls = {new[n] for n in node.controls}
    outputs = [(new[n], i) for n, i in flat.outputs]
    return Flat(nodes, outputs, {new[n] for n in flat.controls})


def eager_attrs(op: Any) -> tuple[Any, ...]:
    """Return a graph operation's attributes in the form for eager operations: names and values alternate."""
    return tuple(part for attr in op.op_def.attr for part in (attr.name, _plain(op.get_attr(attr.name))))


def _plain(attr: Any) -> Any:
    if isinstance(attr, list):
        return [_plain(each) for each in attr]
    if isinstance(attr, tensor_shape_pb2.TensorShapeProto):
        return tf.TensorShape(attr)
    return attr.as_datatype_enum if isinstance(attr, tf.DType) else attr
