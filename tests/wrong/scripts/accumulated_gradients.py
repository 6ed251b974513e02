"""gradients of micro-batches are added up and applied every second one; the last is ragged"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(44)
x = np.random.normal(size=(75, 6))
y = np.random.normal(size=(75, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)
total, count, losses = [tf.zeros(v.shape, tf.float64) for v in model.trainable_variables], 0, []
for xb, yb in ds:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(xb) - yb) ** 2)
    total = [t + g for t, g in zip(total, tape.gradient(loss, model.trainable_variables))]
    losses.append(float(loss))
    count += 1
    if count % 2 == 0:
        opt.apply_gradients(zip([t / 2 for t in total], model.trainable_variables))
        total = [tf.zeros_like(t) for t in total]
        print("step", count // 2, "losses", [f"{v:.12g}" for v in losses[-2:]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
