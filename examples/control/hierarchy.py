"""Terminal-edge-cloud averaging: terminals train, edges average their terminals, the cloud at times the edges.

Liu, Zhang, Song and Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020, algorithm 1 (HierFAVG): k1
local steps between edge averages, k2 edge averages between cloud averages. Shares are equal, so means need no weights.
"""

import argparse
from functools import partial

import softmax

from nfdt.control import peers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=5, help="cloud averages")
parser.add_argument("--k1", type=int, default=4)
parser.add_argument("--k2", type=int, default=2)
args = parser.parse_args()

terminals, edges, (cloud,) = peers.of("terminal"), peers.of("edge"), peers.of("cloud")
shares = len(terminals)


def local_steps(w, x, targets):
    for _ in range(args.k1):
        w = softmax.step(w, softmax.gradient(w, x, targets) * shares)  # the mean over this share
    return w


def average(peer):
    """The mean of what all below `peer` send up."""
    names = [f"w {i}" for i, _ in enumerate(peer.below)]
    for name, child in zip(names, peer.below, strict=True):
        child.send(peer, "w", into=name)
        peer.wait(name)
    peer.compute("w", lambda *ws: sum(ws) / len(ws), *names, steps=0)


def hand_down(peer):
    peer.send(peer.below, "w")
    for child in peer.below:
        child.wait("w")


for i, terminal in enumerate(terminals):
    terminal.compute("w", softmax.start, steps=0)
    terminal.compute(("x", "targets"), partial(softmax.share, i, len(terminals)), steps=0)

for round in range(args.rounds):
    for k in range(args.k2):
        for terminal in terminals:
            terminal.compute("w", local_steps, "w", "x", "targets", steps=args.k1)
        for edge in edges:
            average(edge)
            if k < args.k2 - 1:
                hand_down(edge)
    average(cloud)
    hand_down(cloud)
    for edge in edges:
        hand_down(edge)
    print(f"round {round + 1}: accuracy {softmax.accuracy(cloud.read('w')):.4f}, {peers.now_s:.3f} s")
