"""One emulated host, for test_multicast_hosts.py: `multicast_host.py OUT SIZE`; coded sums over IP multicast."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from fdt.launch.emulated import address_of
from hfdt import algorithms
from hfdt.collectives.ip_multicast import IpMulticast
from hfdt.collectives.ip_rendezvous import bound, interface_address

PORT, WORDS, TIMES = 7077, 60_000, 3
CASES = [("groups", 1), ("groups", 2), ("cyclic", 3), ("paper", 2)]


def main(out, size):
    rank = int(os.environ["FDT_RANK"])
    assert interface_address("eth0") == address_of(rank)
    own = bound(address_of(rank), PORT)
    air = IpMulticast(rank, [(address_of(k), PORT) for k in range(size)], own, b"a key for this test")
    said = {}
    for placement, r in CASES:
        plan = algorithms.make(f"coded(placement={placement!r})").plan(size, r)
        draw = np.random.default_rng(0)
        blocks = [draw.normal(size=WORDS).astype("float32") for _ in plan.owners]
        before = air.sent_bytes
        for _ in range(TIMES):
            total = plan.total({b: blocks[b].copy() for b, owners in enumerate(plan.owners) if rank in owners}, air)
        np.testing.assert_allclose(total, np.sum(blocks, axis=0), rtol=1e-3, atol=1e-4)
        said[f"{placement} {r}"] = [air.sent_bytes - before, TIMES * 4 * plan.sent_words(WORDS)]
    air.close()
    Path(out, f"{rank}.json").write_text(json.dumps(said))
    signal.pause()  # the interface's counters are read while the host is there


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
