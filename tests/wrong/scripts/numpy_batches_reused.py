"""issue: the batches of a dataset are kept as NumPy and trained on again, eagerly"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(25)
x = np.random.normal(size=(19, 6))
y = np.random.normal(size=(19, 1))
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)


def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(xb, training=True) - yb) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return float(loss)


kept, step = [], 0
for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
    kept.append((xb.numpy(), yb.numpy()))
    print("step", step, "loss", f"{train_step(xb, yb):.12g}")
    step += 1
print("kept", [len(a) for a, _ in kept], f"{sum(a.sum() for a, _ in kept):.12g}")
for xb, yb in kept[1:]:
    print("again", step, "loss", f"{train_step(xb, yb):.12g}")
    step += 1
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
