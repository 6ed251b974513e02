"""issue: rows compared with each other, z[:, None] - z[None], in an eager loop"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x = np.random.normal(size=(33, 6))
y = np.random.normal(size=33)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(4)])
opt = keras.optimizers.SGD(0.01)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        z = model(xb)
        d = tf.reduce_sum((z[:, None] - z[None]) ** 2, -1)
        target = tf.abs(yb[:, None] - yb[None])
        loss = tf.reduce_mean((d - target) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    print("step", step, f"loss {float(loss):.12g}", "nearest", f"{float(tf.reduce_max(d)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
