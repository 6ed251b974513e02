"""Federated averaging (McMahan et al. 2017) of a Keras model: peers train by `fit`, the first peer averages weights.

nfdt control examples/control/federated.py --cluster examples/control/links.yaml
"""

import argparse
from functools import partial

import small_keras
import softmax

from nfdt.control import peers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=10)
args = parser.parse_args()

root, others = peers[0], list(peers)[1:]
for number, peer in enumerate(peers):
    peer.compute("w", small_keras.start, steps=0)
    peer.compute(("x", "targets"), partial(softmax.share, number, len(peers)), steps=0)

for _ in range(args.rounds):
    for peer in peers:
        peer.compute("w", small_keras.train, "w", "x", "targets")
    for peer in others:
        peer.send(root, "w", into=peer.name)
        root.wait(peer.name)
    root.compute("w", small_keras.mean, "w", *(peer.name for peer in others), steps=0)
    root.send(others, "w")
    for peer in others:
        peer.wait("w")

print(f"accuracy {small_keras.accuracy(root.read('w')):.4f} after {args.rounds} rounds, {peers.now_s:.4f} s")
