"""Algorithms in replicated scripts under NFDT: their arithmetic on NumPy, and which of them are supported."""

import numpy as np
import pytest

from fdt.errors import UsageError
from nfdt import algorithms
from nfdt.replica.numpy_applier import Arithmetic, Form, checked, form_of
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.transport import WorkerGradient


@pytest.mark.parametrize(
    ("rule", "form"),
    [
        ("asgd", Form(momentum=False, scales=False)),
        ("dc_asgd", Form(momentum=False, scales=False)),
        ("staleness_aware", Form(momentum=False, scales=True)),
        ("ddc_asgd", Form(momentum=True, scales=False)),
        ("ddc_asgd(momentum='captured')", Form(momentum=False, scales=False)),
    ],
)
def test_what_a_rules_updates_are_like_is_found_by_a_push(rule, form):
    assert form_of(algorithms.make(rule), 2) == form


@pytest.mark.parametrize(("rule", "passes_on"), [("asgd", True), ("ddc_asgd", True), ("staleness_aware", False)])
def test_some_rules_pass_the_only_workers_gradients_on(rule, passes_on):
    assert form_of(algorithms.make(rule), 1).passes_on == passes_on


@pytest.mark.parametrize("rule", ["ssgd", "ssp", "k_sync"])
def test_rules_that_make_workers_wait_are_refused(rule):
    with pytest.raises(UsageError, match=f"Received: {rule}"):
        checked(rule)


def test_rank_0_computes_on_the_weights_as_they_are():
    weights = [np.ones(2, np.float32)]
    arithmetic = Arithmetic(weights)
    arithmetic.mu = arithmetic.eta = np.float32(0.5)
    core = AlgorithmState(algorithms.make("ddc_asgd"), arithmetic, 2)
    for push in (1, 2):
        core.pull(0)
        core.push(0, push, WorkerGradient([np.ones(2, np.float32)], 4))
        arithmetic.params = [arithmetic.params[0] - 0.1]
    np.testing.assert_array_equal(core.pull(0), arithmetic.params)
    assert np.all(core.pull(1)[0] < arithmetic.params[0])  # a look-ahead
    scale, *rest = arithmetic.packed(Form(momentum=True, scales=False))
    np.testing.assert_allclose([scale, *rest], [1, 1.5, 1.5, 1, 1])  # mu v + g, then g
