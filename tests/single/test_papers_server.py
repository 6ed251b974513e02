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


@pytest.mark.parametrize(("stale", "expected"), [(0.25, True), (1.0, False)])
def test_the_best_rate_falls_where_updates_are_stale(stale, expected):
    best = {"rounds": 1.0, "1:1": stale}
    results = [
        Measured({"local_steps": 1, "speeds": speeds, "server_rate": rate}, {"final": 50.0 if rate == top else 40.0})
        for speeds, top in best.items()
        for rate in (0.25, 1.0)
    ]
    assert server_rate.falls(results) is expected
