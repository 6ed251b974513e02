"""IP multicast between real network namespaces on shaped links: a packet leaves its host once for all receivers."""

import json
import sys
import time
from pathlib import Path

import pytest

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, address_of
from fdt.launch.namespaces import check_privilege
from fdt.network import Cluster, NetworkLink, NodeGroup
from fdt.network.topology import topology_of
from fdt.service.member import ENGINE_VARIABLE

SIZE, RATE = 4, 25e6  # bytes a second: pieces are lost only where a queue is full
SCRIPT = Path(__file__).with_name("multicast_host.py")


@pytest.mark.exclusive
@pytest.mark.timeout(180)
def test_coded_multicasts_between_hosts(tmp_path):
    try:
        check_privilege()
    except UserError as error:
        pytest.skip(str(error))
    said, sent, received = on_hosts(tmp_path)
    for rank in range(SIZE):
        assert all(counted == theory for counted, theory in said[rank].values()), said[rank]
        payload = sum(counted for counted, _ in said[rank].values())
        assert payload <= sent[rank] <= 1.5 * payload  # heads, reports, repairs: not a copy for each receiver
        assert received[rank] >= 1.5 * payload


def on_hosts(tmp_path):
    """What each rank said, and bytes that left and came over its interface."""
    (tmp_path / "engine").touch()
    network = EmulatedNetwork(topology_of(Cluster((NodeGroup("host", SIZE),), link=NetworkLink(RATE))))
    launcher = EmulatedLauncher(
        tmp_path, network, lambda role, rank: EmulatedHost(rank, f"host-{rank}", address_of(rank))
    )
    env = {ENGINE_VARIABLE: f"unix:{tmp_path / 'engine'}"}
    processes = launcher.start(Task("rank", [sys.executable, str(SCRIPT), str(tmp_path), str(SIZE)], SIZE, env))
    try:
        files = [tmp_path / f"{rank}.json" for rank in range(SIZE)]
        deadline = time.monotonic() + 120
        while not all(file.exists() and file.read_text() for file in files):
            assert not processes.exits() and time.monotonic() < deadline, (tmp_path / "rank-0.log").read_text()
            time.sleep(0.1)
        found = list(network.counters().values())
        said = [json.loads(file.read_text()) for file in files]
        return said, [c["sent"] for c in found], [c["received"] for c in found]
    finally:
        processes.stop(0.0)
        network.close()
