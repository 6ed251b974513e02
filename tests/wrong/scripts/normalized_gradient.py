"""issue: each gradient divided by its norm before the optimizer applies it"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(11)
x = np.random.normal(size=(35, 6))
y = x[:, :1] * x[:, 1:2]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.02)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(xb, training=True) - yb))
    grads = tape.gradient(loss, model.trainable_variables)
    norms = [tf.norm(g) for g in grads]
    opt.apply_gradients([(g / (n + 1e-8), v) for g, n, v in zip(grads, norms, model.trainable_variables)])
    return loss, norms


for step, (xb, yb) in enumerate(ds):
    loss, norms = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g}", "norms", [f"{float(n):.12g}" for n in norms])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
