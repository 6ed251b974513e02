"""A rank of a replicated script: a step that is refused is an error of the run, whatever the script does about it."""

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from fdt.errors import CaptureError  # noqa: E402
from replica.exchange import GroupedExchange  # noqa: E402
from replica.rank import PlacedRank  # noqa: E402


@pytest.mark.parametrize(("ranks", "allowed"), [(2, "0"), (2, "1"), (1, "0")])
def test_a_refusal_that_the_script_catches_is_raised_at_its_end(ranks, allowed):
    group = SimpleNamespace(size=ranks, rank=0)
    options = {"rule": "allreduce", "allow_replicated": allowed}
    rank = PlacedRank(group, GroupedExchange(group), options, print, lambda *_: None)
    for step in (rank._stepped, rank.end):
        refused = pytest.raises(CaptureError, match="nothing that ranks can divide")
        with refused if ranks > 1 and allowed == "0" else contextlib.nullcontext():
            step()
