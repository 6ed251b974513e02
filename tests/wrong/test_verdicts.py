"""The verdict "right": the numbers of one machine, or a refusal that names a line before any training."""

import pytest

from tests.wrong.catalogue import ALL, REFUSED, TOLERANCE
from tests.wrong.verdicts import verdict

ALONE = "step 0 loss 1.0\nweights 2.5\n"
LINE = "assign_by_hand.py:17"


@pytest.mark.parametrize(
    ("divided", "kind"),
    [
        (ALONE, "same numbers"),
        ("step 0 loss 1.0000000001\nweights 2.5\n", "same numbers"),
        ("step 0 loss 1.00000001\nweights 2.5\n", "DIFFERENT"),
        ("step 0 loss nan\nweights 2.5\n", "DIFFERENT"),
        ("step 0 loss 1.0\n", "DIFFERENT"),
        (f"!! refused: rows are compared at {LINE}", "refused"),
        ("!! refused: rows are compared", "failed"),
        (f"step 0 loss 1.0\n!! refused: rows are compared at {LINE}", "failed"),
        (f"!! ValueError: shapes at {LINE}", "failed"),
    ],
)
def test_verdict(divided, kind):
    assert verdict(ALL["assign_by_hand"], ALONE, divided).kind == kind


def test_names_in_the_lists_are_scripts():
    assert set(ALL) >= set(REFUSED) | set(TOLERANCE)
