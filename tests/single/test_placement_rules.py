"""Every rule of the table, over all placements of its inputs, on 2 and 3 ranks, against one process."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import replica.rules  # noqa: F401  fills the rule table
from replica.placement import PARTIAL, REPLICATE, Shard
from replica.plan import RULES, Arg, OpCall, plan, replicated
from replica.rules.shape import known_outputs
from tests.single.placed_execution import VIEWS, Case, call_of, run, same, verify
from tests.single.placement_cases import elementary_cases
from tests.single.placement_shapes import more_cases
from tests.single.test_placement_lists import OPS


@functools.cache
def cases() -> dict[str, list[Case]]:
    """Return the cases of each operation type."""
    ordered = sorted([*elementary_cases(), *more_cases()], key=lambda case: case.op)
    return {op: list(group) for op, group in itertools.groupby(ordered, key=lambda case: case.op)}


def test_every_rule_has_cases() -> None:
    assert set(cases()) | OPS == set(RULES)


@pytest.mark.parametrize("op", sorted(set(RULES) - OPS))
def test_rule(op: str) -> None:
    """Some placement divides the operation, and whatever is divided gives the global outputs."""
    assert sum(verify(case, size) for case in cases()[op] for size in (2, 3))


composed = settings(max_examples=25, derandomize=True, deadline=None, database=None)
lengths = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def numbers(*shape: int) -> Any:
    """Return an array whose entries differ."""
    return np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)


@composed
@given(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_reshapes(factors: list[int], data: Any) -> None:
    """Both shapes are products of the same factors, in the same order."""
    ends = st.lists(st.integers(0, len(factors)), max_size=3)

    def shape() -> list[int]:
        cuts = [0, *sorted(data.draw(ends)), len(factors)]
        return [int(np.prod(factors[low:high])) for low, high in itertools.pairwise(cuts)]

    x, out = numbers(*shape()), shape()
    out[data.draw(st.integers(0, len(out) - 1))] = -1
    verify(Case("Reshape", (x, np.asarray(out, np.int32))), 2)


@composed
@given(lengths, st.integers(0, 2**12), st.data())
def test_slices(shape: list[int], masks: int, data: Any) -> None:
    count = data.draw(st.integers(0, len(shape)))
    entry = st.lists(st.integers(-5, 5), min_size=count, max_size=count)
    steps = st.lists(st.sampled_from([1, 1, 1, 2, -1]), min_size=count, max_size=count)
    spec = [np.asarray(data.draw(each), np.int32) for each in (entry, entry, steps)]
    names = ("begin_mask", "end_mask", "new_axis_mask")
    attrs = {name: masks >> 4 * i & 15 for i, name in enumerate(names)}
    attrs["ellipsis_mask"] = data.draw(st.sampled_from([0, 0, 1, 2, 4]))
    x = numbers(*shape)
    verify(Case("StridedSlice", (x, *spec), attrs), 2)
    gradient = _sliced(x, spec, attrs)
    verify(Case("StridedSliceGrad", (np.asarray(shape, np.int32), *spec, gradient), attrs), 2)


def _sliced(x: Any, spec: list[Any], attrs: dict[str, int]) -> Any:
    case = Case("StridedSlice", (x, *spec), attrs)
    return run(case.op, case.inputs, case.all_attrs)[0]


@composed
@given(lengths, st.data())
def test_broadcasts(shape: list[int], data: Any) -> None:
    def smaller() -> list[int]:
        kept = shape[data.draw(st.integers(0, len(shape))) :]
        return [data.draw(st.sampled_from([1, n])) for n in kept]

    for op in ("Sub", "Mul", "FloorMod"):
        verify(Case(op, (numbers(*smaller()), numbers(*smaller()))), 2)
    verify(Case("SelectV2", (numbers(*smaller()) % 2 == 0, numbers(*smaller()), numbers(*smaller()))), 2)


@composed
@given(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3), st.data())
def test_sums_of_products(labels: list[str], data: Any) -> None:
    used = sorted(set("".join(labels)))
    out = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    length = {label: data.draw(st.integers(0, 3)) for label in used}
    inputs = tuple(numbers(*(length[label] for label in each)) for each in labels)
    verify(Case("Einsum", inputs[:2], {"equation": ",".join(labels[:2]) + "->" + _within(out, labels[:2])}), 2)


def _within(out: str, labels: list[str]) -> str:
    return "".join(label for label in out if label in "".join(labels))


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (), (1,)])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("view", VIEWS[:2])
def test_questions_for_shapes_have_global_answers(shape: tuple[int, ...], dtype: Any, view: Any) -> None:
    for op in ("Shape", "ShapeN", "Size", "Rank"):
        case = Case(op, (numbers(*shape),), {} if op == "Rank" else {"out_type": dtype})
        answers = known_outputs(call_of(case, (Shard(0, (0, 3)) if shape[:1] == (3,) else REPLICATE,), 2, view))
        assert answers is not None
        same(answers[0], run(op, case.inputs, case.all_attrs)[0])


def test_strings_are_divided_only_where_nothing_is_sent():
    rows = Shard(0, (2, 1))
    for op, dtype in (("StringLower", "string"), ("GatherV2", "string"), ("AsString", "int32")):
        args = (
            (Arg(rows, (3, 2), dtype),)
            if op != "GatherV2"
            else (
                Arg(REPLICATE, (3,), dtype),
                Arg(rows, (3,), "int32"),
                Arg(REPLICATE, (), "int32", lambda: np.asarray(0)),
            )
        )
        call = OpCall(op, {}, args, 2)
        assert plan(call) == replicated(call)
        assert plan(call, texts=True).outputs == (rows,)


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_a_lookup_of_values_with_dimensions_of_their_own_is_whole(shape):
    args = Arg(REPLICATE, None, "resource"), Arg(Shard(0, (2, 1)), (3,), "int64"), Arg(REPLICATE, shape)
    assert plan(OpCall("LookupTableFindV2", {}, args, 2)).outputs == (REPLICATE,)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_half_partial_is_added_up_before_it_widens(half):
    """Its sum may overflow where its addends do not, and a LossScaleOptimizer skips the step then."""
    call = OpCall("Cast", {"SrcT": half, "DstT": "float32"}, (Arg(PARTIAL, (3,), half),), 2)
    assert plan(call).inputs == (REPLICATE,)
