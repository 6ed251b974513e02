"""random operations whose shapes and rates are known only at run time, in a tf.function, and a shuffle of rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(13)
x, y = np.random.normal(size=(35, 6)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.1)


@tf.function
def step(xb, yb, rate):
    found = tf.shape(tf.boolean_mask(xb, xb[:, 0] > 0))[0]
    noise = tf.random.uniform([found], dtype=tf.float64)
    level = tf.random.uniform([], maxval=tf.reduce_sum(tf.abs(xb)), dtype=tf.float64)
    other = tf.random.shuffle(xb)
    with tf.GradientTape() as tape:
        p = model(tf.nn.dropout(xb, rate) + 0.1 * tf.random.normal(tf.shape(xb), dtype=tf.float64) + 0.1 * other)
        loss = tf.reduce_mean((p - yb) ** 2) * (1 + tf.reduce_mean(noise)) + 0.0 * level
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, noise, level, other


for n, (xb, yb) in enumerate(ds):
    loss, noise, level, other = step(xb, yb, tf.constant(0.1 * (n % 3), tf.float64))
    values = [loss, tf.reduce_sum(noise), level, other[0, 0]]
    print("step", n, *[f"{float(v):.12g}" for v in values])
for n, (xb, yb) in enumerate(ds.take(2)):
    k = tf.random.uniform(tf.shape(xb), dtype=tf.float64)
    d = tf.nn.dropout(xb, tf.constant(0.3, tf.float64))
    print(
        "eager",
        f"{float(tf.reduce_sum(k)):.12g} {float(tf.reduce_sum(d)):.12g} {float(tf.random.shuffle(xb)[0, 0]):.12g}",
    )
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
