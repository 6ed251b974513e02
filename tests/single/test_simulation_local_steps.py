"""Simulated pushes of several local steps: their time on a node that slows down."""

import pytest

pytest.importorskip("keras")

from fdt.network import Cluster, NodeGroup, Slowdowns  # noqa: E402
from frontends.advise.pushes import PushRun  # noqa: E402
from tests.single.simulations import simulate  # noqa: E402


@pytest.mark.parametrize("seed", range(3))
def test_local_steps_take_the_time_of_as_many_steps_on_a_node_that_slows_down(seed):
    cluster = Cluster((NodeGroup("n", 1, slowdowns=Slowdowns(0.3, 0.3, 10.0)),))
    one_by_one = simulate(cluster, seed=seed).epochs(2).session.now_s
    assert one_by_one > 2.3, "the node was slow for some of 22 steps of 0.1 s"
    for steps in (4, 11):
        simulated = simulate(cluster, seed=seed, rule=f"server_optimizer(local_steps={steps})").epochs(2)
        assert simulated.session.now_s == pytest.approx(one_by_one)


def test_the_advisors_clock_counts_local_steps_as_the_simulator_does():
    cluster = Cluster((NodeGroup("n", 1, slowdowns=Slowdowns(0.3, 0.3, 10.0)),))
    times = [
        PushRun(cluster, f"server_optimizer(local_steps={steps})", 11, 0, seed=4).seconds(epochs=2)
        for steps in (1, 4, 11)
    ]
    assert times == pytest.approx([times[0]] * 3)
