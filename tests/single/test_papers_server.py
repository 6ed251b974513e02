"""Figures of the experiments of source A, computed by hand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from benchmarks.papers import control_end, server_rate
from benchmarks.papers.experiment import Measured


def test_unsteadiness_is_the_spread_of_the_losss_changes_in_the_second_half():
    assert server_rate.unsteadiness([9, 0, 9, 0, 4, 3, 2, 1]) == 0.0  # it falls steadily
    assert server_rate.unsteadiness([9, 9, 9, 9, 1, 2, 1, 2]) == pytest.approx((24 / 27) ** 0.5)


def test_times_of_a_busy_machine_do_not_count():
    def run(kind, seconds, **load):
        return Measured({"kind": kind, "step_ms": 20}, {"step_s": seconds, "weights": "a", **load})

    found = [
        run(control_end.DIRECT, 0.010, load=50.0),
        run(control_end.DIRECT, 0.020, load=2.0),
        run(control_end.EMULATED, 0.030, load=3.0),
        run(control_end.EMULATED, 0.001),
    ]
    assert list(control_end.cells(found)) == [(20, 20.0, 30.0)]
    assert "The times of 2 runs" in control_end.measured(found)


def curves(workers, tau, best):
    return [
        Measured(
            {"workers": workers, "speeds": "1:1", "local_steps": 1, "server_rate": rate},
            {"final": 50.0 if rate == best else 40.0, "tau": tau, "loss": [3, 1, 2, 2]},
        )
        for rate in (0.25, 1.0)
    ]


@pytest.mark.parametrize(("rate", "falls"), [(0.25, True), (1.0, False)])
def test_the_best_rate_falls_where_updates_are_stale(rate, falls):
    found = server_rate.stale([*curves(16, 14.8, rate), *curves(1, 0.0, 1.0)])
    assert list(found) == [0.0, 14.8]
    assert ("as the source has it" in server_rate.falling(found)) is falls


def test_rises_are_the_upward_share_of_the_losss_movement():
    assert server_rate.rises(curves(1, 0.0, 1.0)) == pytest.approx(100 / 3)
