"""gradients leave as NumPy, an optimizer written in NumPy, weights come back by assign"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(111)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
squares = [np.zeros(v.shape) for v in model.trainable_variables]
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.math.log(tf.math.cosh(model(xb) - yb)))
    grads = [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]
    largest = max(np.abs(g).max() for g in grads)
    for v, g, s in zip(model.trainable_variables, grads, squares):
        s += g**2
        v.assign(v.numpy() - 0.1 * g / (np.sqrt(s) + 1e-6))
    print("step", step, f"loss {float(loss):.12g} largest {largest:.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
