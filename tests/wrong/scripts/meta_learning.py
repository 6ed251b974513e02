"""MAML: an inner gradient step on half of the batch, the outer gradient through it on the other half"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(104)
x = rng.normal(size=(40, 3))
y = np.sin(x.sum(1, keepdims=True))
variables = [tf.Variable(rng.normal(size=s) * 0.4) for s in [(3, 5), (5, 1)]]


def loss_of(parameters, a, b):
    return tf.reduce_mean((tf.tanh(a @ parameters[0]) @ parameters[1] - b) ** 2)


@tf.function
def train_step(xb, yb):
    (xs, xq), (ys, yq) = tf.split(xb, 2), tf.split(yb, 2)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            support = loss_of(variables, xs, ys)
        grads = inner.gradient(support, variables)
        fast = [v - 0.2 * g for v, g in zip(variables, grads)]
        query = loss_of(fast, xq, yq)
    for v, g in zip(variables, outer.gradient(query, variables)):
        v.assign_sub(0.3 * g)
    return support, query


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    print("step", step, "support %.12g query %.12g" % tuple(float(v) for v in train_step(xb, yb)))
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in variables])
