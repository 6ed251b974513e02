"""a tf.function with jit_compile=True: a sum loss, a penalty and a global norm; NumPy slices"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(72)
x, y = rng.normal(size=(40, 5)), rng.normal(size=(40, 1))
variables = [tf.Variable(rng.normal(size=s) * 0.5) for s in [(5, 6), (6,), (6, 1)]]


@tf.function(jit_compile=True)
def train_step(xb, yb):
    w1, b1, w2 = variables
    with tf.GradientTape() as tape:
        error = tf.nn.relu(xb @ w1 + b1) @ w2 - yb
        loss = tf.reduce_sum(error**2) + 0.01 * tf.reduce_sum(w1**2)
    grads = tape.gradient(loss, variables)
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(g * g) for g in grads]))
    for v, g in zip(variables, grads):
        v.assign_sub(0.1 * g / norm)
    return loss, norm


for step in range(5):
    rows = slice(8 * step, 8 * step + 8)
    loss, norm = train_step(x[rows], y[rows])
    print("step", step, f"loss {float(loss):.10g} norm {float(norm):.10g}")
print("weights", *[f"{float(tf.reduce_sum(v)):.10g} {float(tf.norm(v)):.10g}" for v in variables])
