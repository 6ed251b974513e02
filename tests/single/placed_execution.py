"""The execution of one operation as the rule table plans it, for all ranks in this process, without communication."""

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

import replica.rules  # noqa: F401  fills the rule table
from replica.placement import PARTIAL, REPLICATE, Partial, Placement, Replicate, Shard, divided
from replica.plan import Arg, OpCall, Plan, plan, replicated

NUMBERS = "iufc"
RESOURCES = tf.Variable, tf.Tensor  # a variable, or the handle of a table
MOST = 24  # combinations of placements that are tried for one case and number of ranks


@dataclass
class Case:
    """A global operation.

    Attributes:
        op: Its type.
        inputs: Arrays, those of a list one after the other, a variable, or a table's handle.
        attrs: Attributes other than the defaults.
        made: Its outputs that the kernel writes; others are not compared.
    """

    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    made: int | None = None

    @functools.cached_property
    def all_attrs(self) -> dict[str, Any]:
        """All attributes, as eager code gives them: types as numbers."""
        return attributes(self)

    @property
    def tolerance(self) -> float:
        """How far sums in another order may be off; some kernels know float32 alone."""
        return 1e-5 if any(i.dtype == np.float32 for i in self.inputs) else 1e-12

    def __str__(self) -> str:
        shapes = [list(getattr(i, "shape", ())) for i in self.inputs]
        return f"{self.op} of {shapes} {self.attrs or ''}"


@dataclass(frozen=True)
class View:
    """What the rule may know: `values` of replicated inputs, `sizes` of undivided dimensions; attributes of graphs."""

    values: bool
    sizes: bool
    graph: bool


VIEWS = [View(True, True, False), View(False, True, True), View(True, False, True), View(False, False, False)]


def placements(array: Any, size: int) -> list[Placement]:
    """Return every placement of an array: each axis in even parts, and in parts of which one or more are empty."""
    found: list[Placement] = [REPLICATE]
    if isinstance(array, RESOURCES):
        return found
    if array.dtype.kind in NUMBERS:
        found.append(PARTIAL)
    for axis, length in enumerate(array.shape):
        sizes = {divided(length, size), (*(0,) * (size - 1), length), (length, *(0,) * (size - 1))}
        found += [Shard(axis, each) for each in sorted(sizes)]
    return found


def combinations(case: Case, size: int) -> list[tuple[Placement, ...]]:
    """Return placements of all inputs: all there are, or a fixed selection that has each of them alone."""
    choices = [placements(array, size) for array in case.inputs]
    count = int(np.prod([len(c) for c in choices]))
    if count <= MOST:
        return list(itertools.product(*choices))
    alone = [tuple(p if i == j else REPLICATE for j in range(len(choices))) for i, c in enumerate(choices) for p in c]
    draw = random.Random(f"{case}{size}")
    drawn = [tuple(draw.choice(c) for c in choices) for _ in range(MOST - len(alone))]
    return [*alone, *drawn]


def locals_of(array: Any, placement: Placement, size: int) -> list[Any]:
    """Return each rank's part of a global array."""
    if isinstance(placement, Shard):
        bounds = [placement.bounds(rank) for rank in range(size)]
        return [array[(slice(None),) * placement.axis + (slice(*each),)] for each in bounds]
    return _addends(array, size) if isinstance(placement, Partial) else [array] * size


def _addends(array: Any, size: int) -> list[Any]:
    generator = np.random.default_rng(5)
    parts = [generator.integers(0, 3, array.shape).astype(array.dtype) for _ in range(size - 1)]
    if array.dtype.kind == "f":
        parts = [generator.normal(size=array.shape).astype(array.dtype) for _ in range(size - 1)]
    return [np.asarray(array - sum(parts), array.dtype), *parts]


def converted(array: Any, given: Placement, target: Placement, size: int) -> list[Any]:
    """Return what each rank holds after a conversion: only rank 0 keeps a value that is to be Partial."""
    if given == target or not isinstance(target, Partial):
        return locals_of(array, target, size)
    return [array, *[np.zeros_like(array)] * (size - 1)]


def call_of(case: Case, given: Sequence[Placement], size: int, view: View) -> OpCall:
    """Return what the engine asks the table."""
    attrs = case.all_attrs
    args = tuple(_arg(i, p, view) for i, p in zip(case.inputs, given, strict=True))
    return OpCall(case.op, _traced(case.op, attrs) if view.graph else attrs, args, size)


def _arg(array: Any, placement: Placement, view: View) -> Arg:
    if isinstance(array, RESOURCES):
        return Arg(placement, None, "resource")
    divided_axis = placement.axis if isinstance(placement, Shard) else None
    shape = tuple(n if view.sizes or axis == divided_axis else None for axis, n in enumerate(array.shape))
    return Arg(placement, shape, tf.as_dtype(array.dtype).name, lambda: array if view.values else None)


def run(op: str, inputs: Sequence[Any], attrs: dict[str, Any]) -> list[Any]:
    """Return the outputs of an operation on arrays."""
    definition = op_def_registry.get(op)
    counts = [_count(arg, attrs) for arg in definition.output_arg]
    pairs = tuple(part for pair in attrs.items() for part in pair)
    with tf.device("CPU"):
        found = execute.execute(op, sum(counts), [_tensor(each) for each in inputs], pairs, context.context())
    return [np.asarray(each) for each in found]


def _count(arg: Any, attrs: dict[str, Any]) -> int:
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr])
    return int(attrs[arg.number_attr]) if arg.number_attr else 1


def attributes(case: Case) -> dict[str, Any]:
    """Return all attributes of a case's operation, as eager code gives them: types as numbers."""
    definition = op_def_registry.get(case.op)
    found = {attr.name: _default(attr) for attr in definition.attr if attr.HasField("default_value")}
    lists = [arg for arg in definition.input_arg if arg.number_attr]
    count = len(case.inputs) - len(definition.input_arg) + len(lists)
    used = 0
    for arg in definition.input_arg:
        if arg.number_attr:
            found[arg.number_attr] = count
        if arg.type_attr:
            found[arg.type_attr] = tf.as_dtype(case.inputs[used].dtype).as_datatype_enum
        used += count if arg.number_attr else 1
    given = {k: v.as_datatype_enum if isinstance(v, tf.DType) else v for k, v in case.attrs.items()}
    return {**found, **given}


def _default(attr: Any) -> Any:
    value = attr.default_value
    kind = value.WhichOneof("value")
    if kind == "list":
        return [*value.list.i, *value.list.f]
    return value.s.decode() if kind == "s" else getattr(value, kind)


def _traced(op: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """Return attributes as a graph gives them: dtypes and bytes."""
    types = {attr.name for attr in op_def_registry.get(op).attr if attr.type == "type"}
    found = {k: tf.as_dtype(v) if k in types and not isinstance(v, list) else v for k, v in attrs.items()}
    return {k: v.encode() if isinstance(v, str) else v for k, v in found.items()}


def _tensor(value: Any) -> Any:
    if isinstance(value, RESOURCES):
        return value.handle if isinstance(value, tf.Variable) else value
    return tf.constant(value)


def divided_run(case: Case, given: Sequence[Placement], found: Plan, size: int) -> list[list[Any]]:
    """Return each rank's outputs under a plan."""
    wanted = zip(case.inputs, given, found.inputs, strict=True)
    parts = [converted(array, before, after, size) for array, before, after in wanted]
    attrs = {**case.all_attrs, **found.attrs}
    return [_rank_run(case.op, found, [part[rank] for part in parts], attrs, rank) for rank in range(size)]


def _rank_run(op: str, found: Plan, inputs: list[Any], attrs: dict[str, Any], rank: int) -> list[Any]:
    for index, values in found.values.items():
        inputs[index] = values[rank]
    outputs = run(found.op or op, inputs, attrs)
    return outputs if found.scale is None else [np.asarray(o * np.asarray(found.scale, o.dtype)) for o in outputs]


def joined(parts: list[Any], placement: Placement) -> Any:
    """Return the global array that the ranks' parts stand for."""
    if isinstance(placement, Shard):
        assert [part.shape[placement.axis] for part in parts] == list(placement.sizes)
        return np.concatenate(parts, placement.axis)
    if isinstance(placement, Partial):
        return np.asarray(sum(parts), parts[0].dtype)
    assert isinstance(placement, Replicate)
    for part in parts[1:]:
        same(part, parts[0])
    return parts[0]


def same(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    """Assert equality to rounding, of dtypes and shapes, too."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert np.array_equal(found, expected)


def verify(case: Case, size: int, views: Sequence[View] = VIEWS, given: Any = None) -> int:
    """Assert that every plan of a case gives the global outputs; return how many plans divide something."""
    expected = run(case.op, case.inputs, case.all_attrs)
    dividing = 0
    for placed, found in _plans(case, size, views, given):
        dividing += 1
        outputs = divided_run(case, placed, found, size)
        for index, wanted in enumerate(expected[: case.made]):
            try:
                same(joined([rank[index] for rank in outputs], found.output(index)), wanted, case.tolerance)
            except Exception as error:
                raise AssertionError(f"{case}, {placed}, {found}: output {index}: {error}") from error
    return dividing


def _plans(case: Case, size: int, views: Sequence[View], given: Any) -> Iterator[tuple[tuple[Placement, ...], Plan]]:
    tried = set()
    for placed in [given] if given else combinations(case, size):
        for view in views:
            call = call_of(case, placed, size, view)
            found = plan(call, texts=True)
            kept = tuple(
                before is PARTIAL for before, after in zip(placed, found.inputs, strict=True) if after is PARTIAL
            )
            if found != replicated(call) and (repr(found), kept) not in tried:
                tried.add((repr(found), kept))
                yield placed, found
