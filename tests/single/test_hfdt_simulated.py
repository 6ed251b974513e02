"""Ranks on a simulated clock: hfdt's own algorithms, with packets timed by a described network."""

import sys
from math import comb
from pathlib import Path

import keras
import numpy as np
import numpy.testing as npt
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
import comm_contract
from in_process import trained

from fdt.network import Cluster, NetworkLink, NodeGroup, Speed
from hfdt import algorithms
from hfdt.collectives.simulated import SimulatedWorld, on_simulated
from tests.in_process_comm import on_ranks

EVEN = Speed()
WORDS = 840  # of float32: a gradient of 3360 bytes
G_S = 3.36  # what it takes at 1,000 bytes a second


def cluster(n, *, medium=False, multicast=True, latency_s=0.0, speed=EVEN):
    """`n` nodes that send 1,000 bytes a second: each, or all together."""
    slow = NetworkLink(1000.0, latency_s)
    link, shared = (NetworkLink(), slow) if medium else (slow, None)
    return Cluster((NodeGroup("node", n, speed),), step_s=2.0, link=link, multicast=multicast, medium=shared)


def exchange(made, text, redundancy):
    """(sums at each rank, simulated seconds, bytes sent by each) of one exchange."""
    world, n = SimulatedWorld(made), len(made.workers)
    plan = algorithms.make(text).plan(n, redundancy)
    draw = np.random.default_rng(0)
    blocks = [draw.normal(size=WORDS).astype("float32") for _ in plan.owners]

    def rank(comm):
        own = {b: blocks[b].copy() for b, owners in enumerate(plan.owners) if comm.rank in owners}
        return plan.total(own, comm), comm.sent_bytes

    results = on_simulated(world, rank)
    exact = on_ranks(n, rank)[0][0]
    for total, _ in results:
        npt.assert_array_equal(total, exact)
    return world.now_s, [sent for _, sent in results]


@pytest.mark.parametrize("check", [comm_contract.adds, comm_contract.keeps_dtypes, comm_contract.multicasts])
def test_contract(check):
    on_simulated(SimulatedWorld(cluster(3)), check)


@pytest.mark.parametrize(("n", "r"), [(2, 1), (4, 2), (6, 3)])
def test_a_medium_that_all_share_carries_a_packet_once_or_once_a_receiver(n, r):
    seconds, sent = exchange(cluster(n, medium=True), "coded(placement='groups')", r)
    assert seconds == pytest.approx(n * G_S / r) and sent == [3360 / r] * n
    seconds, sent = exchange(cluster(n, medium=True, multicast=False), "coded(placement='groups')", r)
    assert seconds == pytest.approx(n * (n - 1) * G_S / r) and sent == [(n - 1) * 3360 / r] * n


@pytest.mark.parametrize(("n", "r"), [(3, 2), (4, 2), (5, 3)])
def test_the_papers_packets_on_a_medium(n, r):
    seconds, sent = exchange(cluster(n, medium=True), "coded", r)
    assert seconds == pytest.approx(n * comb(n - 1, r) * G_S / r)
    assert sent == [comb(n - 1, r) * 3360 // r] * n


def test_a_switch_is_bound_by_what_a_node_receives():
    # Two nodes: each sends its whole gradient, the second once it has the first's, and its links are full duplex.
    assert exchange(cluster(2), "coded(placement='groups')", 1)[0] == pytest.approx(2 * G_S)
    # Coding saves bytes sent, not bytes received: all C(3, 2) packets of G / 2 come down every link, twice each.
    assert exchange(cluster(4), "coded", 2)[0] >= comb(3, 2) * G_S


def test_a_ring():
    vector = np.zeros(WORDS, np.float32)
    for latency_s in (0.0, 0.5):
        world = SimulatedWorld(cluster(4, latency_s=latency_s))
        on_simulated(world, lambda comm: comm.sum([vector], "ring"))
        assert world.now_s == pytest.approx(2 * 3 / 4 * G_S + 2 * 3 * 2 * latency_s)


def test_work_takes_the_nodes_own_time_and_the_slowest_is_waited_for():
    made = Cluster((NodeGroup("fast", 1, Speed(2.0)), NodeGroup("slow", 2, Speed(0.5))), step_s=2.0)

    def rank(comm):
        comm.work(0.5)
        own = comm.now_s
        comm.sum([np.ones(1)], "meet")
        return own, comm.now_s

    assert on_simulated(SimulatedWorld(made), rank) == [(0.5, 2.0), (2.0, 2.0), (2.0, 2.0)]


def test_a_run_is_the_same_every_time():
    def seconds(seed):
        world = SimulatedWorld(cluster(3, speed=Speed(1.0, 5.0)), seed)
        on_simulated(world, lambda comm: (comm.work(1), comm.sum([np.ones(9)], "a"), comm.work(1)))
        return world.now_s

    assert seconds(1) == seconds(1) != seconds(2)


def test_a_rank_that_fails_ends_all():
    def rank(comm):
        if comm.rank == 1:
            raise ValueError("no gradient")
        comm.sum([np.ones(1)], "never")

    with pytest.raises(ValueError, match="no gradient"):
        on_simulated(SimulatedWorld(cluster(3)), rank)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (
            lambda comm: comm.multicast(np.ones(1), 0, (0, 1)) if comm.rank else None,
            "waits for a packet that no rank sends",
        ),
        (lambda comm: comm.sum([np.ones(1)], f"rank {comm.rank}"), "all ranks must call the same collective"),
    ],
)
def test_what_would_hang_is_told(work, said):
    with pytest.raises(RuntimeError, match=said):
        on_simulated(SimulatedWorld(cluster(2)), work)


@pytest.mark.parametrize("rule", ["coded(redundancy=2)", "dane"])
def test_keras_trains_over_it(rule):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(48, 5)).astype("float32")
    y = x.sum(axis=1)

    def model():
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.01), "mse")
        return made

    world = SimulatedWorld(cluster(3, medium=True))
    timed, *_, sent = trained(rule, 3, model, x, y, among=lambda size, work: on_simulated(world, work))
    plain, *_ = trained(rule, 3, model, x, y)
    for got, want in zip(timed, plain, strict=True):
        npt.assert_array_equal(got, want)
    if "coded" in rule:  # sums of metrics and checksums take their time too
        assert world.now_s >= 2 * 3 * sent / 1000
    assert world.now_s > 0
