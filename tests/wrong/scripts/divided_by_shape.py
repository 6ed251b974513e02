"""sums divided by x.shape[0], by len(x) and by tf.shape(x)[0], all three in one eager loss"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(76)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.05)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        error = model(xb) - yb
        a = tf.reduce_sum(error**2) / xb.shape[0]
        b = tf.reduce_sum(tf.abs(error)) / len(yb)
        c = tf.reduce_sum(error) / tf.cast(tf.shape(error)[0], tf.float64)
        loss = a + b + c**2 + 0.01 * len(xb)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, "shape", xb.shape, tuple(tf.shape(error).numpy()), f"loss {float(loss):.12g} {float(c):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
