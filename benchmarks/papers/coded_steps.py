"""The time and the bytes of one synchronous step: coded SGD, SSGD by multicast or unicast, a ring.

The time is that of HFDT's own algorithm on a simulated clock (hfdt/cost/on_cluster.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.papers.coded_training import TASKS, WHOLE, cluster
from benchmarks.papers.coded_training import weights as counted
from hfdt.cost.on_cluster import Load, exchanges

STEPS = 3  # simulated, of which the median is taken
RING, UNICAST, MULTICAST, CODED = "ring all-reduce", "SSGD unicast", "SSGD multicast", "coded"
PLACEMENTS = {CODED: "paper", "coded, groups": "groups", "coded, cyclic": "cyclic"}  # SSGD: groups of one
weights = cache(counted)


def step(load: str, task: str, network: str, nodes: int, method: str, r: int) -> Mapping[str, Any]:
    """Return the seconds of a step, and the bytes that all nodes send."""
    one_s = TASKS[task].step_s
    step_s = one_s * nodes if load == WHOLE else one_s
    made = replace(cluster(network, nodes, TASKS[task]), step_s=step_s, multicast=method != UNICAST)
    coded = f"coded(placement={PLACEMENTS.get(method, 'groups')!r}, redundancy={r})"
    algorithm = "allreduce" if method == RING else coded
    moments = exchanges(made, algorithm, Load(batches=STEPS, epochs=1, nbytes=4 * weights(task)))
    seconds = float(np.median(np.diff([moment.seconds for moment in moments], prepend=0.0)))
    sent_bytes = round(moments[-1].nbytes / STEPS)
    return {"step_s": round(seconds, 7), "sent_bytes": sent_bytes, "calculation_s": one_s}
