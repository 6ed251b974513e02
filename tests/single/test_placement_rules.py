"""Every rule of the table, over all placements of its inputs, on 2 and 3 ranks, against one process."""

import functools
import itertools

import pytest

import replica.rules  # noqa: F401  fills the rule table
from replica.plan import RULES
from tests.single.placed_execution import Case, verify
from tests.single.placement_cases import elementary_cases
from tests.single.placement_shapes import more_cases


@functools.cache
def cases() -> dict[str, list[Case]]:
    """Return the cases of each operation type."""
    ordered = sorted([*elementary_cases(), *more_cases()], key=lambda case: case.op)
    return {op: list(group) for op, group in itertools.groupby(ordered, key=lambda case: case.op)}


def test_every_rule_has_cases() -> None:
    assert set(cases()) == set(RULES)


@pytest.mark.parametrize("op", sorted(RULES))
def test_rule(op: str) -> None:
    """Some placement divides the operation, and whatever is divided gives the global outputs."""
    assert sum(verify(case, size) for case in cases()[op] for size in (2, 3))
