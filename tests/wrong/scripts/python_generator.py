"""a Python generator of NumPy batches, of sizes that differ; weighted by the rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(74)


def batches():
    rng = np.random.default_rng(74)
    for rows in (7, 8, 1, 6, 3):
        a = rng.normal(size=(rows, 4))
        yield a, a.sum(1, keepdims=True)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.05)


@tf.function(reduce_retracing=True)
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        error = model(xb, training=True) - yb
        loss = tf.reduce_max(tf.abs(error)) + tf.nn.l2_loss(error)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


seen, total = 0, 0.0
for step, (xb, yb) in enumerate(batches()):
    loss = train_step(tf.convert_to_tensor(xb), tf.convert_to_tensor(yb))
    seen, total = seen + len(xb), total + loss.numpy() * len(xb)
    print("step", step, "rows", len(xb), f"loss {loss:.12g} average {total / seen:.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
