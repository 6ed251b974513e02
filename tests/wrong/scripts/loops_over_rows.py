"""A while_loop, scan, map_fn, TensorArray and python range over rows in one function."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x = np.random.randn(22, 5)
w, s0 = tf.Variable(np.random.randn(5) * 0.5), tf.Variable(np.zeros(5))


@tf.function
def step(xb):
    n = tf.shape(xb)[0]
    with tf.GradientTape() as tape:
        ta = tf.TensorArray(tf.float64, size=n)
        state = tf.convert_to_tensor(s0)
        for i in tf.range(n):
            state = 0.9 * state + xb[i] * w
            ta = ta.write(i, tf.reduce_sum(state**2))
        energies = ta.stack()
        sums = tf.map_fn(lambda r: tf.reduce_sum(r * w), xb)
        run = tf.scan(lambda a, r: tf.tanh(a + r * w), xb, initializer=tf.zeros(5, tf.float64))
        vec = tf.vectorized_map(lambda r: tf.linalg.det(tf.linalg.diag(1.0 + r * w)), xb)
        loss = (
            tf.reduce_mean(energies)
            + tf.reduce_mean(sums**2)
            + tf.reduce_mean(run)
            + tf.math.log(tf.abs(tf.reduce_mean(vec)))
        )
    w.assign_sub(0.02 * tape.gradient(loss, w))
    s0.assign(state)
    return loss


for xb in tf.data.Dataset.from_tensor_slices(x).batch(6):
    print(f"{float(step(xb)):.12g} {float(tf.reduce_sum(s0)):.12g}")
for row in tf.data.Dataset.from_tensor_slices(x[:5]):
    print(f"{float(step(row[None])):.12g}")
print(f"{float(tf.reduce_sum(w)):.12g}")
