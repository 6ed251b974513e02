"""Loops and branches in the emitted graph, whose functions are emitted for a rank's part where that is possible.

No collective is in a loop or a branch: a result that would need one is computed whole on every rank, and so is a loop
with a variable of two placements. All ranks run the same number of iterations, and the same branch, because the
conditions are replicated.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import tensorflow as tf

from fdt.compat.tensorflow import atomic_function, ops
from replica.exchange import GroupedExchange
from replica.graph.emit import Emitter
from replica.graph.emitted import Argument, Emitted, Undivided, Value
from replica.graph.flatten import Flat, Ref, flatten
from replica.graph.known import KnownValues
from replica.graph.lists import is_list, joined_items
from replica.graph.with_lists import ListEmitter
from replica.placement import PARTIAL, REPLICATE, Placement, local_shape
from replica.plan import Arg, Array, Plan, Shape
from replica.rules.lists import common

_LOOPS, _BRANCHES = ("While", "StatelessWhile"), ("If", "StatelessIf", "Case", "StatelessCase")
_ROUNDS = 16  # bound of a fixed point: a variable's placement changes once, and each dimension of its shape

Lookup = Callable[[int], Array | None]  # the value of an argument, where it is known


def emitted(
    flat: Flat, arguments: Sequence[Argument], values: Sequence[Any], exchange: GroupedExchange, name: str
) -> Emitted:
    """Return a function as a rank runs it. The arguments are those of an Emitter."""
    try:
        return Divider(flat, arguments, values, exchange, name).run()
    except Undivided:
        return Emitter(flat, arguments, values, exchange, name).run()


class Divider(ListEmitter):
    """The emitter of a function whose loops and branches are divided too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._plans: dict[int, Plan | None] = {}  # number of a loop or a branch -> its plan
        self._results: dict[int, list[Argument]] = {}

    def _planned(self, number: int, values: list[Value]) -> Plan | list[Array] | None:
        kind = self._flat.nodes[number].op.type
        inputs = values[1:] if kind in _BRANCHES else values
        if kind not in (*_LOOPS, *_BRANCHES) or all(v.placement is REPLICATE for v in inputs):
            return super()._planned(number, values)
        if number not in self._plans:
            self._plans[number] = self._divided(number, [_argument(value) for value in values])
        self._divides = True
        return self._plans[number] or super()._planned(number, values)

    def _divided(self, number: int, arguments: list[Argument]) -> Plan | None:
        node = self._flat.nodes[number]
        try:
            if node.op.type in _LOOPS:
                found, results = self._loop(node.op, arguments, node.inputs)
            else:
                found, results = self._branches(node.op, arguments[1:], node.inputs[1:])
        except Undivided:
            return None
        self._results[number] = results
        shapes = [_local(a, t, self.rank) for a, t in zip(results, node.op.outputs, strict=True)]
        return replace(found, attrs={**found.attrs, "output_shapes": shapes})

    def _note_lists(self, number: int) -> None:
        super()._note_lists(number)
        if self._plans.get(number) is not None:
            for index, result in enumerate(self._results[number]):
                made = self._values[number, index]
                if is_list(made.tensor):
                    self._values[number, index] = replace(made, shape=result.shape, items=result.items)

    def _loop(self, op: Any, arguments: list[Argument], refs: Sequence[Ref]) -> tuple[Plan, list[Argument]]:
        """Join the variables' descriptions before and after an iteration until they do not change."""
        cond, body = (flatten(_graph(op, op.get_attr(name).name)) for name in ("cond", "body"))
        passed = {i for i, ref in enumerate(body.outputs) if body.nodes[ref[0]].argument == i}

        def value(index: int) -> Array | None:
            return self._known.value(refs[index]) if index in passed else None

        def attempt(state: list[Argument], whole: set[int]) -> tuple[Plan, list[Argument]]:
            for _ in range(_ROUNDS):
                inner = Body(body, state, value, self._exchange, self._name)
                before, state = state, [_joined(a, b) for a, b in zip(state, inner.begin(), strict=True)]
                if before == state:
                    break
            if before != state or any(state[i].placement is not REPLICATE for i in whole):
                raise Undivided("a loop's variable has several placements")
            placements = tuple(each.placement for each in state)
            test = Body(cond, state, value, self._exchange, self._name)
            test.begin()
            attrs = {"body": inner.finish(placements), "cond": test.finish((REPLICATE,))}
            return Plan(placements, placements, attrs=attrs), state

        return _with_whole(arguments, attempt)

    def _branches(self, op: Any, arguments: list[Argument], refs: Sequence[Ref]) -> tuple[Plan, list[Argument]]:
        """Join the descriptions of the branches' results."""
        several = op.type.endswith("Case")
        names = [f.name for f in op.get_attr("branches")] if several else [op.get_attr(n).name for n in _THEN_ELSE]
        flats = [flatten(_graph(op, name)) for name in names]

        def value(index: int) -> Array | None:
            return self._known.value(refs[index])

        def attempt(given: list[Argument], whole: set[int]) -> tuple[Plan, list[Argument]]:
            for _ in range(_ROUNDS):
                inner = [Body(flat, given, value, self._exchange, self._name) for flat in flats]
                results = reduce(_all_joined, [each.begin() for each in inner])
                wanted = {i: p for each in inner for i, p in each.wanted.items()}
                if not wanted:
                    break
                given = [replace(a, placement=wanted.get(i, a.placement)) for i, a in enumerate(given)]
            placements = tuple(each.placement for each in results)
            made = [each.finish(placements) for each in inner]
            attrs = {"branches": made} if several else dict(zip(_THEN_ELSE, made, strict=True))
            return Plan((REPLICATE, *(a.placement for a in given)), placements, attrs=attrs), results

        return _with_whole(arguments, attempt)


_THEN_ELSE = ("then_branch", "else_branch")


class Body(Divider):
    """The emitter of a function of a loop or a branch.

    Args:
        flat: Its operations.
        arguments: Its arguments.
        value: Returns the known value of an argument.
        exchange: The collectives.
        name: The name of the function that it is part of.

    Attributes:
        wanted: Arguments that are lists of whole elements -> the placement that the function needs of them.
    """

    _within = True

    def __init__(
        self, flat: Flat, arguments: Sequence[Argument], value: Lookup, exchange: GroupedExchange, name: str
    ) -> None:
        super().__init__(flat, arguments, (), exchange, name)
        self._known = _Known(flat, value)
        self.wanted: dict[int, Placement] = {}

    def begin(self) -> list[Argument]:
        """Emit the operations, before `finish`; return the outputs with their placements."""
        with self.graph.as_default():
            self._emit_arguments()
            self._emit_nodes()
        return [_argument(self._values[ref]) for ref in self._flat.outputs]

    def finish(self, placements: Sequence[Placement]) -> Any:
        """Return the function, with its outputs converted to `placements`."""
        pairs = list(zip(self._flat.outputs, placements, strict=True))
        if any(self._values[ref].placement not in (placement, REPLICATE) for ref, placement in pairs):
            raise Undivided("a loop's condition is not replicated")
        with self.graph.as_default():
            self.graph.outputs = [tf.identity(self._input(ref, placement)) for ref, placement in pairs]
        if self.wanted:
            raise Undivided("a list of replicated elements would have to be divided")
        self.graph.control_outputs = [self._ops[number] for number in sorted(self._flat.controls)]
        return atomic_function.from_func_graph(f"{self.graph.name}_{ops.uid()}", self.graph, {})

    def _input(self, ref: Ref, target: Placement) -> Any:
        value, argument = self._values[ref], self._flat.nodes[ref[0]].argument
        if argument is None or not is_list(value.tensor) or target in (REPLICATE, value.placement):
            return super()._input(ref, target)
        self.wanted[argument] = target
        return tf.compat.v1.placeholder(tf.variant)

    def _pays(self, value: Value) -> bool:
        return False

    def _forks(self, refs: Sequence[Ref]) -> list[Ref]:
        return []

    def _small_outputs(self) -> list[Ref]:
        return []

    def _drawn_before(self, number: int) -> bool:
        raise Undivided("a random operation keeps a state")

    def _replicate(self, refs: dict[Ref, None]) -> None:
        raise Undivided("an operation needs a collective", self._made_of(refs))

    def _made_of(self, refs: Iterable[Ref]) -> set[int]:
        """Return the arguments whose replication makes `refs` replicated; none if there are other causes.

        A Partial that is computed from other Partials is whole if they are.
        """
        arguments, seen, stack = set(), set(refs), list(refs)
        while stack:
            ref = stack.pop()
            node = self._flat.nodes[ref[0]]
            inputs = {r for r in node.inputs if self._values[r].placement is PARTIAL}
            if node.argument is not None:
                arguments.add(node.argument)
            elif self._values[ref].placement is not PARTIAL or not inputs:
                return set()
            stack.extend(inputs - seen)
            seen |= inputs
        return arguments


class _Known(KnownValues):
    def __init__(self, flat: Flat, value: Lookup) -> None:
        super().__init__(flat, (), ())
        self._lookup = value

    def _of_argument(self, index: int) -> Array | None:
        return self._lookup(index)


Result = tuple[Plan, list[Argument]]


def _with_whole(arguments: list[Argument], attempt: Callable[[list[Argument], set[int]], Result]) -> Result:
    """Return the result of `attempt` with the arguments replicated that it needs whole."""
    whole: set[int] = set()
    while True:
        given = [replace(a, placement=REPLICATE) if i in whole else a for i, a in enumerate(arguments)]
        try:
            return attempt(given, whole)
        except Undivided as undivided:
            more = {i for i in undivided.arguments if given[i].placement is not REPLICATE}
            if not more or len(more) < len(undivided.arguments) or any(given[i].dtype == tf.variant for i in more):
                raise
            whole |= more


def _argument(value: Value) -> Argument:
    return Argument(value.placement, value.shape, value.tensor.dtype, value.items)


def _all_joined(left: list[Argument], right: list[Argument]) -> list[Argument]:
    return [_joined(a, b) for a, b in zip(left, right, strict=True)]


def _joined(left: Argument, right: Argument) -> Argument:
    """Return the description that fits both, if both can be converted to it without a collective."""
    placement = common([Arg(each.placement, each.shape, each.dtype.name) for each in (left, right)])
    if placement is None:
        raise Undivided("a variable has two placements")
    shape = _joined_shape(left.shape, right.shape)
    if left.dtype == tf.variant and left.shape != right.shape:
        shape = None
    return Argument(placement, shape, left.dtype, joined_items(left.items, right.items))


def _joined_shape(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))


def _local(argument: Argument, traced: Any, rank: int) -> Any:
    known = argument.shape is not None and argument.dtype != tf.variant
    return local_shape(argument.shape or (), argument.placement, rank) if known else traced.shape


def _graph(op: Any, name: str) -> Any:
    """Return a function's traced graph. A definition alone, as of tf.nn.ctc_loss, may call operations by name."""
    function = op.graph._get_function(name)
    if not hasattr(function, "graph"):
        raise Undivided("a function has a definition, but no graph")
    return function.graph
