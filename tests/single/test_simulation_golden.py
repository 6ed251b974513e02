"""Every algorithm's simulated training against its golden trace: the exact order of events, values to 1e-4.

A new algorithm needs a file in golden/, which NFDT_WRITE_GOLDEN=1 writes: check its content before you commit it.
"""

import json
import os
from pathlib import Path

import numpy as np
import numpy.testing as npt
import pytest

pytest.importorskip("keras")

from nfdt import algorithms  # noqa: E402
from tests.single.simulations import simulate  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
EPOCHS = 2
PARAMETERS = {  # where the defaults show little of a rule
    "group_sync": "(warm_up=1)",
    "server_optimizer": "(local_steps=2, lr=0.5, momentum=0.5)",
}


def trace(rule):
    simulated = simulate(rule=rule + PARAMETERS.get(rule, "")).epochs(EPOCHS)
    return {
        "events": [f"{kind} {worker} {tau}" for _, kind, worker, tau in simulated.calls],
        "seconds": [round(seconds, 6) for seconds, *_ in simulated.calls],
        "loss": [end.logs["loss"] for _, end in simulated.ends()],
        "norms": [float(np.linalg.norm(array)) for array in simulated.weights],
    }


@pytest.mark.parametrize("rule", algorithms.names())
def test_golden_trace(rule):
    file = GOLDEN / f"{rule}.json"
    if os.environ.get("NFDT_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(trace(rule), indent=1) + "\n")
    if not file.exists():
        pytest.skip(f"{rule} has no golden trace yet: NFDT_WRITE_GOLDEN=1 pytest {__file__} -k {rule}")
    golden, got = json.loads(file.read_text()), trace(rule)
    assert got["events"] == golden["events"]
    for values in ("seconds", "loss", "norms"):
        npt.assert_allclose(got[values], golden[values], rtol=1e-4, atol=1e-7, err_msg=values)
