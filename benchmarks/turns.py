"""The cost of a step that is another NFDT worker's: every worker runs every iteration and draws every batch.

    python benchmarks/turns.py [--steps 300]

There is one worker of very many, so that all but its first steps are others'. The CPU time of such an iteration is
compared with that of an iteration which computes its step.
"""

import argparse
import ast
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from client_shim.replica.rewriting import rewritten
from client_shim.replica.skippable_regions import RegionHooks
from fdt.process_group.peer import PeerGroup
from nfdt.replica.rank import RoundRobinRank

SCRIPT = """
def step(batch, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(batch) - labels) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
if style == "function":
    step = tf.function(step)
for number, (batch, labels) in enumerate(dataset):
    if number == 3:
        began = clock()
    if style != "draw":
        step(batch, labels)
seconds = clock() - began
"""


class Worker(PeerGroup):
    """It never pushes."""

    def __init__(self, size):
        self.rank, self.size = size - 1, size

    def broadcast(self, value, name):
        return value

    def _whole(self, combined, name):
        return np.zeros_like(combined.whole)


def names(style, steps, width):
    x = np.zeros((64, width), "float32")
    layers = [keras.Input((width,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(width, "relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    dataset = tf.data.Dataset.from_tensors((x, x[:, :1])).repeat(steps + 3)
    known = {"tf": tf, "model": model, "dataset": dataset, "style": style, "clock": time.process_time}
    return {**known, "optimizer": keras.optimizers.SGD(0.0)}


def alone(style, steps, width):
    known = names(style, steps, width)
    exec(compile(SCRIPT, "script.py", "exec"), known)
    return known["seconds"] / steps


def others(style, steps, width, path):
    hooks, rank = RegionHooks(), RoundRobinRank(Worker(10**9), {"rule": "asgd"})
    hooks.pass_on_to(rank.skippable_regions)
    with rewritten(hooks), rank.in_tensorflow(), rank.in_keras("keras"):
        known = names(style, steps, width)
        exec(compile(hooks.rewrite(ast.parse(SCRIPT)), path, "exec"), known)
    return known["seconds"] / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    path = Path("/tmp/fdt-turns-script.py")
    path.write_text(SCRIPT)
    for style in ("draw", "function", "eager"):
        computed = alone(style, given.steps, given.width)
        left_out = others(style, given.steps, given.width, str(path))
        print(f"{style:10} computed {computed * 1e3:6.2f} ms   another's {left_out * 1e3:6.2f} ms of CPU an iteration")
    path.unlink()


if __name__ == "__main__":
    main()
