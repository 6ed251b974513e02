"""Scripts that were trained wrong once: on two and on three ranks the numbers of one machine, or a refusal in time."""

import pytest

from tests.wrong import catalogue
from tests.wrong.running import alone, divided
from tests.wrong.verdicts import REFUSED, SAME


@pytest.fixture(scope="module")
def expected():
    return alone(catalogue.QUICK)


@pytest.fixture(scope="module", params=[2, 3])
def run(request, expected):
    return divided(catalogue.QUICK, "hfdt", request.param)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", catalogue.QUICK)
def test_trained_as_alone_or_refused(name, run, expected):
    verdict, output = run[name]
    said = f"{verdict}\n-- alone\n{expected[name]}\n-- divided\n{output}"
    words = catalogue.REFUSED.get(name)
    assert verdict.kind == (REFUSED if words else SAME), said
    assert not words or words in verdict.detail, said


@pytest.fixture(scope="module")
def one_worker():
    return divided(catalogue.NFDT, "nfdt", 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", catalogue.NFDT)
def test_one_asynchronous_worker_trains_as_alone(name, one_worker, expected):
    verdict, output = one_worker[name]
    assert verdict.kind == SAME, f"{verdict}\n-- alone\n{expected[name]}\n-- one worker\n{output}"
