"""placements: the model and the loss are tf.functions; the tape around them is eager, the loss a root of a mean"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(42)
x, y = rng.normal(size=(35, 5)), rng.normal(size=(35, 1))
variables = [tf.Variable(rng.normal(size=s) * 0.5) for s in [(5, 8), (8, 1)]]


@tf.function
def forward(features):
    return tf.tanh(features @ variables[0]) @ variables[1]


@tf.function
def rmse(targets, outputs):
    return tf.sqrt(tf.reduce_mean((targets - outputs) ** 2))


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        loss = rmse(yb, forward(xb))
    for v, g in zip(variables, tape.gradient(loss, variables)):
        v.assign_sub(0.1 * g)
    print("step", step, "loss", f"{float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
