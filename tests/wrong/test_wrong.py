"""Scripts with loops of their own: on two and on three ranks the numbers of one machine, or refused in time."""

import pytest

from tests.wrong.catalogue import ALL, NOT_YET, REFUSED
from tests.wrong.running import alone, divided
from tests.wrong.verdicts import REFUSED as WAS_REFUSED
from tests.wrong.verdicts import SAME

NAMES = [
    pytest.param(name, marks=[pytest.mark.xfail(strict=False, reason="not yet")] if name in NOT_YET else [])
    for name in ALL
]


@pytest.fixture(scope="module")
def expected():
    return alone(list(ALL))


@pytest.fixture(scope="module", params=[2, 3])
def run(request, expected):
    return divided(list(ALL), "hfdt", request.param)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_trained_as_alone_or_refused(name, run, expected):
    verdict, output = run[name]
    if name in REFUSED:
        assert verdict.kind == WAS_REFUSED and REFUSED[name] in verdict.detail, verdict
    else:
        assert verdict.kind == SAME, f"{verdict}\n-- alone\n{expected[name]}\n-- divided\n{output}"
