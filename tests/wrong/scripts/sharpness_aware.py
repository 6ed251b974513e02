"""issue: SAM: a step uphill along the normalized gradient, a second gradient there, back, and down"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(13)
x = np.random.normal(size=(35, 6))
y = (x.sum(1) > 0).astype("float64")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
opt = keras.optimizers.SGD(0.1)
rho = 0.05


@tf.function
def sam_step(xb, yb):
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = loss_fn(yb, model(xb, training=True))
    grads = tape.gradient(loss, variables)
    scale = rho / (tf.linalg.global_norm(grads) + 1e-12)
    offsets = [g * scale for g in grads]
    for v, e in zip(variables, offsets):
        v.assign_add(e)
    with tf.GradientTape() as tape:
        uphill = loss_fn(yb, model(xb, training=True))
    grads = tape.gradient(uphill, variables)
    for v, e in zip(variables, offsets):
        v.assign_sub(e)
    opt.apply_gradients(zip(grads, variables))
    return loss, uphill


for step, (xb, yb) in enumerate(ds):
    loss, uphill = sam_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} uphill {float(uphill):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
