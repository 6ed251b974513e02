"""Ring all-reduce SGD: n peers add up their gradients in 2(n-1) rounds of sending 1/n of a gradient to the next.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009: scatter-reduce, then
all-gather. In round r peer i sends part i-r; what comes from the peer before it is part i-1-r.
"""

import argparse
from functools import partial

import numpy as np
import softmax

from nfdt.control import peers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

n = len(peers)
parts = [f"part {i}" for i in range(n)]


def gradient_in_parts(w, x, targets):
    return np.array_split(softmax.gradient(w, x, targets).ravel(), n)


def step(w, *summed):
    return softmax.step(w, np.concatenate(summed).reshape(w.shape))


def pass_on(first, combine):
    """n-1 rounds: every peer sends a part to the next, and combines what it has of the part that comes."""
    for r in range(n - 1):
        for i, peer in enumerate(peers):
            peer.send(peers[(i + 1) % n], parts[(i + first - r) % n], into="coming")
            peer.wait("coming")
            mine = parts[(i + first - 1 - r) % n]
            peer.compute(mine, combine, mine, "coming", steps=0)


for i, peer in enumerate(peers):
    peer.compute("w", softmax.start, steps=0)
    peer.compute(("x", "targets"), partial(softmax.share, i, n), steps=0)

for _ in range(args.steps):
    for peer in peers:
        peer.compute(parts, gradient_in_parts, "w", "x", "targets")
    pass_on(0, np.add)
    pass_on(1, lambda mine, coming: coming)
    for peer in peers:
        peer.compute("w", step, "w", *parts, steps=0)

print(f"accuracy {softmax.accuracy(peers[0].read('w')):.4f} after {args.steps} steps, {peers.now_s:.4f} s")
