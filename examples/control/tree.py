"""Tree all-reduce SGD: gradients are added up on their way to the root, and the sum goes down the same links.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005. A peer waits for
its children, adds what they bring to its own and sends the sum up; with multicast links a parent sends down once.
"""

import argparse
from functools import partial

import numpy as np
import softmax

from nfdt.control import peers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

for i, peer in enumerate(peers):
    peer.compute("w", softmax.start, steps=0)
    peer.compute(("x", "targets"), partial(softmax.share, i, len(peers)), steps=0)

for _ in range(args.steps):
    for peer in peers:
        peer.compute("g", softmax.gradient, "w", "x", "targets")
        for _ in peer.below:
            peer.wait("from below")
            peer.compute("g", np.add, "g", "from below", steps=0)
        if peer.above:
            peer.send(peer.above, "g", into="from below")
            peer.wait("sum")
        else:
            peer.compute("sum", lambda g: g, "g", steps=0)
        if peer.below:
            peer.send(peer.below, "sum")
        peer.compute("w", softmax.step, "w", "sum", steps=0)

accuracy = softmax.accuracy(peers[-1].read("w"))
print(f"accuracy {accuracy:.4f} after {args.steps} steps, {peers.now_s:.4f} s")
