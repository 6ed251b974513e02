"""Synchronous SGD on softmax regression by four nodes: a control program, or with --direct those nodes' own processes.

Both run the same functions in the same order. The last line is JSON: seconds of the steps, and a digest of the weights.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import socket
import time
from functools import partial
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

NODES, ROWS, FEATURES, CLASSES, RATE = 4, 256, 784, 10, 0.1


def share(node):
    """Return rows and targets of one node."""
    rng = np.random.default_rng(node)
    return rng.normal(size=(ROWS, FEATURES)), np.eye(CLASSES)[rng.integers(0, CLASSES, ROWS)]


def start():
    return np.zeros((FEATURES, CLASSES))


def gradient(w, x, targets):
    odds = np.exp(x @ w)
    return x.T @ (odds / odds.sum(axis=1, keepdims=True) - targets) / (NODES * ROWS)


def step(w, *gradients):
    return w - RATE * sum(gradients)


def controlled(steps):
    """Command the peers of `nfdt control`; return seconds and weights."""
    from nfdt.control import peers

    root, others = peers[0], list(peers)[1:]
    for node, peer in enumerate(peers):
        peer.compute("w", start, steps=0)
        peer.compute(("x", "targets"), partial(share, node), steps=0)
    for peer in others:  # connects everybody
        peer.send(root, "w", into="hello")
        root.wait("hello")
        root.send(peer, "w", into="hello")
        peer.wait("hello")
    peers.wait()
    began = peers.now_s
    for _ in range(steps):
        for peer in peers:
            peer.compute("g", gradient, "w", "x", "targets")
        for peer in others:
            peer.send(root, "g", into=f"g of {peer.name}")
            root.wait(f"g of {peer.name}")
        root.compute("w", step, "w", "g", *(f"g of {peer.name}" for peer in others), steps=0)
        root.send(others, "w")
        for peer in others:
            peer.wait("w")
    peers.wait()
    return peers.now_s - began, root.read("w")


def paced(work, step_s):
    """Return the result of `work` when `step_s` has passed, at the earliest."""
    began = time.monotonic()
    result = work()
    time.sleep(max(0.0, began + step_s - time.monotonic()))
    return result


def at_once(connection):
    """Return `connection`, which sends without delay: what follows a header would wait 40 ms for its ACK."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def other(node, address, steps, step_s):
    """Run a node that is not the root."""
    w, (x, targets) = start(), share(node)
    with at_once(Client(address)) as root:
        root.send(node)
        root.recv()
        for _ in range(steps):
            root.send(paced(partial(gradient, w, x, targets), step_s))
            w = root.recv()


def direct(steps, step_s):
    """Run all nodes as processes; return seconds and weights."""
    w, (x, targets) = start(), share(0)
    with Listener(("127.0.0.1", 0)) as listener:
        arguments = [(node, listener.address, steps, step_s) for node in range(1, NODES)]
        nodes = [multiprocessing.Process(target=other, args=given) for given in arguments]
        for process in nodes:
            process.start()
        accepted = [at_once(listener.accept()) for _ in nodes]
        joined: dict[int, Connection] = {connection.recv(): connection for connection in accepted}
        began = time.monotonic()
        for connection in joined.values():
            connection.send("begin")
        for _ in range(steps):
            g = paced(partial(gradient, w, x, targets), step_s)
            w = step(w, g, *(joined[node].recv() for node in sorted(joined)))
            for node in sorted(joined):
                joined[node].send(w)
        seconds = time.monotonic() - began
        for process in nodes:
            process.join()
    return seconds, w


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--direct", type=float, metavar="SECONDS", help="no control: a step takes so long at least")
    given = parser.parse_args()
    seconds, w = controlled(given.steps) if given.direct is None else direct(given.steps, given.direct)
    print(json.dumps({"seconds": seconds, "weights": hashlib.sha256(w.tobytes()).hexdigest()[:16]}))


if __name__ == "__main__":
    main()
