"""issue: signSGD: only the sign of the gradient is applied"""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(12)
x, y = rng.normal(size=(35, 5)), rng.normal(size=(35, 1))
variables = [tf.Variable(rng.normal(size=s) * 0.5) for s in [(5, 8), (8,), (8, 1)]]


def forward(features):
    w1, b1, w2 = variables
    return tf.nn.softplus(features @ w1 + b1) @ w2


@tf.function
def train_step(features, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((forward(features) - targets) ** 2)
    for v, g in zip(variables, tape.gradient(loss, variables)):
        v.assign_sub(0.01 * tf.sign(g))
    return loss


step = 0
for features, targets in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
    print("step", step, "loss", f"{train_step(features, targets):.12g}")
    step += 1
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
