"""Cluster descriptions, routes, shared links and paces: values computed by hand, on a simulated clock."""

import math
import re
from pathlib import Path

import numpy as np
import numpy.testing as npt
import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from fdt.errors import UsageError
from fdt.network import Cluster, NetworkLink, NodeGroup, Pace, Slowdowns, Speed, equal_nodes
from fdt.network.reading import parse_cluster, read_cluster
from fdt.network.topology import SERVER, topology_of
from fdt.network.transfers import Transfers, fair_rates

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_every_documented_file_is_read(text):
    cluster = parse_cluster(text).with_workers(None)
    topology = topology_of(cluster)
    assert all(topology.route(node.index, SERVER).channels for node in cluster.workers)


def test_the_documented_star():
    cluster = parse_cluster(EXAMPLES[0]).with_workers(16)
    fast, slow, busy, visitor = cluster.groups
    assert (fast.speed, fast.count) == (Speed(1.0, 100.0), 8)
    assert slow.uplink == NetworkLink(62.5e6, 1e-3)
    assert busy.slowdowns == Slowdowns(60.0, 10.0, 4.0)
    assert (visitor.count, visitor.joins_s, visitor.leaves_s) == (2, 30.0, 120.0)
    assert [node.name for node in cluster.nodes][-3:] == ["busy-1", "visitor-0", "visitor-1"]
    assert cluster.server == NetworkLink(1.25e9, 2e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes:\n  - count: 2\n    sped: 1", "c.yaml, line 3, key nodes[0].sped: must be one of name, count, layer"),
        (
            "nodes:\n  - count: two",
            "c.yaml, line 2, key nodes[0].count: must be a whole number, from 1 to 100,000. Received: two",
        ),
        ("nodes: [{count: 999999999999}]", "must be a whole number, from 1 to 100,000. Received: 999999999999"),
        ("nodes: " + "[" * 5000, "lists within lists too deep"),
        ("nodes: 3", "line 1, key nodes: must be a list of one entry or more"),
        ("topology: mesh\nnodes: [{count: 1}]", "must be one of star, ring, tree, terminal-edge-cloud. Received: mesh"),
        ("nodes: [{}]\nlink: {bandwidth: 1 Gbps}", "line 2, key link.bandwidth: must be unlimited, or a bandwidth"),
        ("nodes: [{}]\nlink: {latency: 5}", "key link.latency: must be a time such as 100 ms, or 0"),
        ("nodes: [{speed: -1}]", "key nodes[0].speed: must be a number more than 0"),
        ("nodes: [{speed: {distribution: gamma}}]", "must be a mapping with the key shape, for distribution gamma"),
        ("nodes: [{joins: 3 s, leaves: 2 s}]", "joins at 3 s, leaves at 2 s"),
        ("nodes: [{layer: edge}]", "key nodes[0].layer: must be left out unless topology is terminal-edge-cloud"),
        ("topology: terminal-edge-cloud\nnodes: [{count: 1}]", "with nodes of every layer"),
        ("nodes: [{}, {name: b}]", "at most one group of nodes has no count"),
        (
            "nodes: [{name: a, count: 1}, {name: a}]",
            "key nodes[1]: must be a group with names, its own and its nodes', that no other group has, and not "
            "server. Received: a",
        ),
        (
            "nodes: [{name: a, count: 2}, {name: a-0, count: 1}]",
            "that no other group has, and not server. Received: a-0",
        ),
        ("nodes: [{name: a-7, count: 1}, {name: a}]", "that no other group has, and not server. Received: a-7"),
        ("nodes: [{name: server, count: 1}]", "that no other group has, and not server. Received: server"),
        (
            "nodes: [{name: a, count: 1001}, {name: b, count: 1000}]\nlinks: [[a, b]]",
            "line 2, key links[0]: must be one of 1,000,000 links at most",
        ),
        ("nodes: [{count: 1, count: 2}]", "key nodes[0].count: must be given once"),
        ("nodes: [", "line 1: must be YAML"),
        ("nodes: [{count: 1}]\nlinks: [[node, hub]]", "line 2, key links[0]: must be one of node, server, or a node"),
        (
            "nodes: [{count: 2}]\nlinks:\n- [node-0, node-1]\n- [node-1, node-0]",
            "line 4, key links[1]: must be the only",
        ),
        ("nodes: [{count: 2}]\nlinks: [[node, node]]", "must be between two places. Received: node-0 and node-0"),
        (
            "nodes: [{count: 2}]\nlinks: [[node-0, server]]",
            "key links: must be links by which every node reaches every",
        ),
        ("nodes: [{count: 2}]\nlinks: [[node]]", "key links[0]: must be two ends, and the link between them"),
        ("nodes: [{count: 1}]\nswitches: [s, s]\nlinks: [[node, s]]", "names given once. Received: s twice"),
        ("nodes: [{count: 1}]\nlinks: [[node, server, {lag: 1 ms}]]", "key links[0][2].lag: must be one of bandwidth"),
        ("nodes: [{count: 1}]\nserver: {}\nlinks: [[node, server]]", "key server: must be left out where a link leads"),
        ("nodes: [{count: 1}]\ntopology: star\nlinks: [[node, server]]", "key topology: must be left out where links"),
        ("nodes: [{link: {}}]\nlinks: [[node, server]]", "key nodes[0].link: must be left out where links"),
        ("nodes: [{}]\nswitches: [a]", "key switches: must be given with links"),
        ("", "an empty file"),
    ],
)
def test_a_mistake_is_one_line_with_file_line_and_key(text, said):
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        parse_cluster(text, "c.yaml")
    assert "\n" not in str(raised.value) and "Received: " in str(raised.value)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="--cluster cannot be read: .*binary.yaml: 'utf-8'"):
        read_cluster(tmp_path / "binary.yaml")


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="--cluster cannot be read"):
        read_cluster(tmp_path / "no.yaml")


def test_the_number_of_workers():
    assert len(equal_nodes().with_workers(5).workers) == 5
    assert len(equal_nodes().with_workers(None).workers) == 1
    with pytest.raises(UsageError, match="must be 3, as in the cluster"):
        Cluster((NodeGroup("a", 3),)).with_workers(4)
    with pytest.raises(UsageError, match="must be at least 4, the sum of the counts in the cluster. Received: 2"):
        Cluster((NodeGroup("a", 3), NodeGroup("b", None))).with_workers(2)


def test_an_open_group_of_another_layer_has_one_node():
    layers = NodeGroup("phone", 4), NodeGroup("edge", None, layer="edge"), NodeGroup("cloud", 1, layer="cloud")
    cluster = Cluster(layers, "terminal-edge-cloud")
    assert [len(cluster.with_workers(count).nodes) for count in (None, 4)] == [6, 6]
    with pytest.raises(UsageError, match="--workers must be 4, as in the cluster, or left out. Received: 10"):
        cluster.with_workers(10)


def test_layers():
    terminals, server = parse_cluster(EXAMPLES[3]).with_workers(None), SERVER
    topology = topology_of(terminals)
    assert len(terminals.workers) == 12
    names = [topology.names[channel] for channel in topology.route(7, server).channels]
    assert names == ["phone-7 up", "edge-1 up", "cloud up", "server down"]
    assert topology.route(7, server).latency_s == pytest.approx(0.026)
    assert [topology.names[c] for c in topology.route(server, 7).channels][-1] == "phone-7 down"


def test_rings_go_the_shorter_way():
    topology = topology_of(Cluster((NodeGroup("n", 6),), "ring"))
    assert [topology.names[c] for c in topology.route(0, 5).channels] == ["n-5 down"]
    assert len(topology.route(0, 3).channels) == 3


def test_a_tie_of_latencies_goes_to_the_fewest_links_however_they_are_added():
    """0.1 + 0.3 ms is less than 0.4 ms in binary numbers, and the way round was a thousand times slower."""
    links = "[[a, s, {bandwidth: 10 Mbit/s, latency: 0.1 ms}], [s, b, {latency: 0.3 ms}], [a, b, {latency: 0.4 ms}]]"
    nodes = "[{name: a, count: 1}, {name: b, count: 1}]"
    made = topology_of(parse_cluster(f"nodes: {nodes}\nswitches: [s]\nlinks: {links}"))
    assert len(made.route(0, 1).channels) == 1


def test_listed_links_take_the_route_of_least_latency():
    cluster = parse_cluster(EXAMPLES[-1])
    topology = topology_of(cluster)
    names = [topology.names[channel] for channel in topology.route(0, 5).channels]
    assert names == ["a-0--west up", "b-0--west down", "b-0--east up", "b-1--east down"]
    assert topology.route(0, 5).latency_s == topology.route(5, 0).latency_s == pytest.approx(0.004)
    assert topology.route(0, SERVER).latency_s == pytest.approx(0.003)
    assert topology.route(5, SERVER).latency_s == pytest.approx(0.005)  # by b-0 and west
    grown = topology_of(parse_cluster("nodes: [{}]\nlinks: [[node, server]]").with_workers(3))
    assert [grown.names[grown.route(n, SERVER).channels[0]] for n in range(3)] == [
        f"node-{n}--server up" for n in range(3)
    ]


def test_where_no_listed_link_leads_to_the_server_it_is_at_node_0():
    topology = topology_of(parse_cluster("nodes: [{count: 2}]\nlinks: [[node-0, node-1]]"))
    assert [topology.names[c] for c in topology.route(1, SERVER).channels] == ["node-0--node-1 down", "server down"]


def test_multicast_counts_a_link_once():
    topology = topology_of(Cluster((NodeGroup("n", 7),), "tree"))
    route = topology.multicast(0, [3, 4])
    assert [topology.names[c] for c in route.channels] == ["n-1 down", "n-3 down", "n-4 down"]


def paths(*flows):
    return np.array([[*flow, *[3] * (2 - len(flow))] for flow in flows])


def test_fair_rates_by_hand():
    # Two flows over channel 0 (10), one of them also over channel 1 (2): it is held to 2, the other gets the rest.
    capacity = np.array([10.0, 2.0, 5.0, np.inf])
    npt.assert_allclose(fair_rates(capacity, paths([0], [0, 1], [2])), [8.0, 2.0, 5.0])


FLOWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True), min_size=1, max_size=20)


@given(FLOWS)
def test_fair_rates_fill_what_they_can(flows):
    capacity = np.array([1.0, 2.5, 7.0, np.inf])
    rates = fair_rates(capacity, paths(*flows))
    used = [sum(rate for rate, flow in zip(rates, flows, strict=True) if channel in flow) for channel in range(3)]
    assert all(u <= c + 1e-9 for u, c in zip(used, capacity, strict=False))
    for rate, flow in zip(rates, flows, strict=True):  # each has a full channel on which nobody has more
        full = [c for c in flow if used[c] >= capacity[c] - 1e-9]
        assert any(all(rates[i] <= rate + 1e-9 for i, f in enumerate(flows) if c in f) for c in full)


def arrivals(topology, sends, kind=Transfers):
    """When each of `sends` (start, from, to, bytes) arrives."""
    env = simpy.Environment()
    transfers, arrived = kind(env, topology), {}

    def one(i, start, a, b, nbytes):
        yield env.timeout(start)
        yield transfers.send(topology.route(a, b), nbytes)
        arrived[i] = env.now

    for i, send in enumerate(sends):
        env.process(one(i, *send))
    env.run()
    return [arrived[i] for i in range(len(sends))], transfers


def test_transfers_share_a_link():
    star = topology_of(Cluster((NodeGroup("n", 2),), link=NetworkLink(100.0, 0.5), server=NetworkLink(100.0)))
    # Alone for 1 s, then two share: the first has 50 left at 1 s and ends at 2 s; the second gets 50, then all.
    done, transfers = arrivals(star, [(0, 0, SERVER, 150), (1, 1, SERVER, 150)])
    npt.assert_allclose(done, [3.0 + 0.5 - 1.0, 3.0 + 0.5])
    assert sum(transfers.sent_bytes) == 4 * 150


def test_one_begins_as_another_ends():
    star = topology_of(Cluster((NodeGroup("n", 2),), server=NetworkLink(100.0)))
    assert arrivals(star, [(0, 0, SERVER, 100), (1, 1, SERVER, 100)])[0] == [1.0, 2.0]


def test_a_flow_is_held_back_from_when_another_comes_and_no_longer():
    star = topology_of(Cluster((NodeGroup("n", 2),), link=NetworkLink(6.0), server=NetworkLink(10.0)))
    # 6 a second until 5 s, 5 each until the first ends at 11 s, 6 again; later it is alone as at first.
    done, _ = arrivals(star, [(0, 0, SERVER, 60), (5, 1, SERVER, 60), (20, 0, SERVER, 60)])
    npt.assert_allclose(done, [11.0, 16.0, 30.0])


class Reckoned(Transfers):
    """Every flow's rate is reckoned by what all others have."""

    def _begin(self, flow):
        for channel in flow.route.channels:
            self._flows[channel] += 1
        flow.free = False
        self._contended.begin(flow)


SENDS = st.tuples(
    st.floats(0, 20) | st.integers(0, 3), st.integers(0, 3), st.integers(-1, 3), st.integers(0, 200)
).filter(lambda send: send[1] != send[2])


@given(st.lists(SENDS, min_size=1, max_size=15), st.sampled_from([8.0, 20.0, 60.0]), st.sampled_from(["star", "ring"]))
@example([(0.0, 0, 1, 32), (0.99999, 1, 0, 22)], 8.0, "star")  # 0.0001 bytes are left when the second flow ends
def test_flows_that_nobody_holds_back_end_as_if_they_were_reckoned(sends, bandwidth, shape):
    groups = (NodeGroup("n", 3), NodeGroup("wide", 1, link=NetworkLink(25.0, 0.5)))
    made = topology_of(Cluster(groups, shape, link=NetworkLink(10.0), server=NetworkLink(bandwidth, 0.1)))
    done, transfers = arrivals(made, sends)
    npt.assert_allclose(done, arrivals(made, sends, Reckoned)[0], rtol=1e-9)
    assert not any(transfers._flows) and not any(transfers._wanted) and not any(transfers._free)


def test_directions_do_not_share():
    star = topology_of(Cluster((NodeGroup("n", 1),), link=NetworkLink(100.0)))
    npt.assert_allclose(arrivals(star, [(0, 0, SERVER, 100), (0, SERVER, 0, 100)])[0], [1.0, 1.0])


def test_links_that_cost_nothing():
    star = topology_of(Cluster((NodeGroup("n", 2),), link=NetworkLink(math.inf, 0.25)))
    assert arrivals(star, [(0, 0, 1, 10**9), (0, 0, 0, 10**9)])[0] == [0.5, 0.0]


def test_a_node_that_sends_to_itself_uses_no_medium():
    made = topology_of(Cluster((NodeGroup("n", 2),), medium=NetworkLink(100.0, 0.5)))
    assert arrivals(made, [(0, 1, 1, 100)])[0] == [0.0] and not made.multicast(1, [1]).channels


def paced(group, times, step_s=1.0, seed=(3,)):
    pace = Pace(Cluster((group,)).nodes[0], step_s, seed)
    return [pace.seconds(now) for now in times]


def test_a_constant_pace():
    assert paced(NodeGroup("n", 1, Speed(0.5)), [0, 7]) == [2.0, 2.0]


def test_a_gamma_pace():
    times = paced(NodeGroup("n", 1, Speed(2.0, 25.0)), [0] * 4000)
    assert np.mean(times) == pytest.approx(0.5, rel=0.02)
    assert np.std(times) == pytest.approx(0.1, rel=0.05)
    assert times == paced(NodeGroup("n", 1, Speed(2.0, 25.0)), [0] * 4000)


@pytest.mark.parametrize(("steps", "draws", "deviation"), [(16, 1, 0.8), (4, 16, 0.2), (0.25, 1, 0.05)])
def test_each_of_several_steps_has_a_time_of_its_own(steps, draws, deviation):
    pace = Pace(Cluster((NodeGroup("n", 1, Speed(1.0, 25.0)),)).nodes[0], 1.0, (3,))
    times = [pace.seconds(0.0, steps, draws) for _ in range(4000)]
    assert np.std(times) == pytest.approx(deviation, rel=0.05)


def test_another_fit_has_other_times_and_the_same_slow_periods():
    periods = Slowdowns(0.5, 0.5, 4.0)
    random, even = (NodeGroup("n", 1, Speed(1.0, shape), periods) for shape in (9.0, None))
    found = [
        [Pace(Cluster((group,)).nodes[0], 0.1, (0,), fit).seconds(now) for now in range(9)]
        for group in (random, even)
        for fit in (0, 1)
    ]
    assert found[0] != found[1] and found[2] == found[3] and len(set(found[2])) > 1


def test_slowdowns_come_and_go():
    group, now = NodeGroup("n", 1, slowdowns=Slowdowns(9.0, 3.0, 4.0)), 0.0
    pace = Pace(Cluster((group,)).nodes[0], 0.1, (0,))
    for _ in range(20_000):
        now += pace.seconds(now)
    slow_share = 3.0 / 12.0  # of the time
    expected = 20_000 * 0.1 / (1 - slow_share + slow_share / 4)
    assert now == pytest.approx(expected, rel=0.1)


def test_nodes_begin_slow_as_often_as_they_are_slow():
    """A training shorter than a slow period meets as many of them as a long one."""
    cluster = Cluster((NodeGroup("n", 2_000, Speed(1.0, None), Slowdowns(9.0, 3.0, 4.0)),))
    first = [Pace(node, 0.001, (0,)).seconds(0.0) for node in cluster.nodes]
    assert sum(each > 0.002 for each in first) / 2_000 == pytest.approx(3 / 12, abs=0.03)


def test_a_medium_is_crossed_by_all_and_once_by_a_multicast():
    text = "medium: {bandwidth: 8 kbit/s, latency: 1 s}\nmulticast: true\nnodes: [{count: 3}]"
    made = topology_of(parse_cluster(text))
    assert made.names[-1] == "medium" and made.multicast(0, [1, 2]).channels.count(len(made.channels) - 1) == 1
    env = simpy.Environment()
    transfers = Transfers(env, made)
    both = simpy.AllOf(env, [transfers.send(made.route(0, 1), 1000), transfers.send(made.route(1, 0), 1000)])
    env.run(both)
    assert env.now == pytest.approx(3.0)  # both directions share it
    with pytest.raises(UsageError, match="key medium: must be left out unless topology is star"):
        parse_cluster("topology: ring\nmedium: {}\nnodes: [{count: 3}]")
