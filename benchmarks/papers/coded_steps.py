"""The time and the bytes of one synchronous step: coded SGD, SSGD by multicast or unicast, a ring.

The time is that of HFDT's own algorithm, whose packets cross the links of fdt/network on a simulated clock.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.papers.coded_training import TASKS, WHOLE, cluster
from benchmarks.papers.coded_training import weights as counted
from hfdt import algorithm_registry
from hfdt.collectives.simulated import SimulatedWorld, on_simulated

WORDS = 2_520  # gradients are cut to this, which 1 to 10 divide, and links slowed alike: times stay
STEPS = 3  # simulated, of which the median is taken
RING, UNICAST, MULTICAST, CODED = "ring all-reduce", "SSGD unicast", "SSGD multicast", "coded"
PLACEMENTS = {CODED: "paper", "coded, groups": "groups", "coded, cyclic": "cyclic"}  # SSGD: groups of one
weights = cache(counted)


def step(load: str, task: str, network: str, nodes: int, method: str, r: int) -> Mapping[str, Any]:
    """Return the seconds of a step, and the bytes that all nodes send."""
    slower = weights(task) / WORDS
    made = cluster(network, nodes, TASKS[task], slower=slower)
    world = SimulatedWorld(replace(made, multicast=method != UNICAST))
    rule = algorithm_registry.make(f"coded(placement={PLACEMENTS.get(method, 'groups')!r})")
    plan = None if method == RING else rule.plan(nodes, r)
    vector, batches = np.zeros(WORDS, np.float32), nodes if load == WHOLE else 1

    def rank(comm: Any) -> tuple[list[float], int]:
        ends = []
        for _ in range(STEPS):
            if plan is None:
                comm.work(batches / nodes)
                comm.sum([vector], "ring")
            else:
                own = {b: vector for b, owners in enumerate(plan.owners) if comm.rank in owners}
                comm.work(batches * len(own) / len(plan.owners))
                plan.total(own, comm)
            ends.append(comm.now_s)
        return ends, comm.sent_bytes

    found = on_simulated(world, rank)
    ends = np.max([times for times, _ in found], axis=0)
    sent = sum(sent for _, sent in found) / STEPS if plan else 2 * (nodes - 1) * vector.nbytes
    seconds = float(np.median(np.diff(ends, prepend=0.0)))
    return {"step_s": round(seconds, 7), "sent_bytes": round(sent * slower), "calculation_s": TASKS[task].step_s}
