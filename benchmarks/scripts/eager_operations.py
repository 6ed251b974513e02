"""CPU microseconds of eager operations on a batch's rows, after a training step, which gives a run rows to divide."""

import json
import resource

import numpy as np
import tensorflow as tf

ROWS, WIDTH, CALLS, TURNS = 64, 32, 10_000, 3
rows = np.random.RandomState(0).randn(ROWS, WIDTH).astype("float32")
weights = tf.Variable(np.eye(WIDTH, dtype="float32"))
batch = next(iter(tf.data.Dataset.from_tensors(rows)))
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.matmul(batch, weights) ** 2)
weights.assign_sub(0.01 * tape.gradient(loss, weights))
square = weights.value()

OPERATIONS = {
    "relu": lambda: tf.nn.relu(batch),
    "add": lambda: batch + batch,
    "multiply by a number": lambda: batch * 2.0,
    "matmul": lambda: tf.matmul(batch, square),
    "reduce_sum of a row": lambda: tf.reduce_sum(batch, axis=1),
    "softmax": lambda: tf.nn.softmax(batch),
    "reshape": lambda: tf.reshape(batch, (ROWS, 4, -1)),
    "cast": lambda: tf.cast(batch, tf.float64),
}


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def microseconds(operation):
    """The fastest of some turns."""
    best = float("inf")
    for _ in range(TURNS):
        before = cpu_s()
        for _ in range(CALLS):
            operation()
        best = min(best, (cpu_s() - before) / CALLS * 1e6)
    return best


print("bench", json.dumps({name: microseconds(operation) for name, operation in OPERATIONS.items()}))
