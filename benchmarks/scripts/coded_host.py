"""One host of benchmarks/coded_hosts.py: `coded_host.py OUT SIZE WORDS COMPUTE_S STEPS`, with FDT_RANK set.

Computation is replaced by sleep: two cores cannot compute for four hosts. The exchange is hfdt's own algorithm over IP
multicast, with real sums and packets.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fdt.launch.emulated import address_of
from hfdt import algorithms
from hfdt.collectives.ip_multicast import IpMulticast
from hfdt.collectives.ip_rendezvous import bound

PORT = 7077


def run(air: IpMulticast, placement: str, r: int, words: int, compute_s: float, steps: int) -> dict[str, Any]:
    """`compute_s`: of the whole batch on one host."""
    plan = algorithms.make(f"coded(placement={placement!r})").plan(air.size, r)
    vector = np.random.default_rng(0).normal(size=words).astype("float32")
    own = {b: vector for b, owners in enumerate(plan.owners) if air.rank in owners}
    before, ends = (air.sent_bytes, air.again_bytes), [time.monotonic()]
    for _ in range(steps):
        time.sleep(compute_s * len(own) / len(plan.owners))
        plan.total(own, air)
        ends.append(time.monotonic())
    return {
        "placement": placement,
        "r": r,
        "steps_s": list(np.diff(ends)),
        "sent": (air.sent_bytes - before[0]) / steps,
        "theory": 4 * plan.sent_words(words),
        "again": (air.again_bytes - before[1]) / steps,
    }


def main(out: str, size: int, words: int, compute_s: float, steps: int) -> None:
    rank = int(os.environ["FDT_RANK"])
    addresses = [(address_of(k), PORT) for k in range(size)]
    air = IpMulticast(rank, addresses, bound(addresses[rank][0], PORT), b"a key for this benchmark")
    found = []
    for placement in ("paper", "groups", "cyclic"):
        for r in range(1, size):
            if placement != "groups" or size % r == 0:
                found.append(run(air, placement, r, words, compute_s, steps))
    air.close()
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
