"""distillation: two models trained side by side on each other's outputs, standardized over the batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(93)
x = np.random.normal(size=(35, 5))
y = np.random.randint(0, 3, 35)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
models = [
    keras.Sequential([keras.Input((5,)), keras.layers.Dense(n, activation="tanh"), keras.layers.Dense(3)])
    for n in (4, 7)
]
opts = [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)]


def standard(z):
    return (z - tf.reduce_mean(z)) / (tf.math.reduce_std(z) + 1e-6)


for step, (xb, yb) in enumerate(ds):
    outs = [standard(m(xb)) for m in models]
    losses = []
    for i, (m, o) in enumerate(zip(models, opts)):
        with tf.GradientTape() as tape:
            z = m(xb, training=True)
            ce = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(yb, z))
            loss = ce + tf.reduce_mean((standard(z) - outs[1 - i]) ** 2)
        o.apply_gradients(zip(tape.gradient(loss, m.trainable_variables), m.trainable_variables))
        losses.append(float(loss))
    print("step", step, "losses", [f"{v:.12g}" for v in losses])
variables = [v for m in models for v in m.trainable_variables]
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
