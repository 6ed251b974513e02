"""the concordance correlation of predictions and targets over the batch as the loss"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(96)
x = np.random.normal(size=(36, 4))
y = np.tanh(x.sum(1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Lion(0.01)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        p = model(xb, training=True)[:, 0]
        mp, my = tf.reduce_mean(p), tf.reduce_mean(yb)
        cov = tf.reduce_mean((p - mp) * (yb - my))
        ccc = 2 * cov / (tf.math.reduce_variance(p) + tf.math.reduce_variance(yb) + (mp - my) ** 2)
        loss = 1 - ccc
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return ccc


for step, (xb, yb) in enumerate(ds):
    print("step", step, "ccc", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
