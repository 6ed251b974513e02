"""placements: tf.map_fn over the rows of a batch, with a matrix inverse in each"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(41)
x = rng.normal(size=(33, 3, 3))
w = tf.Variable(rng.normal(size=(3, 3)) * 0.3)


def energy(row):
    m = tf.matmul(row, row, transpose_b=True) + tf.matmul(w, w, transpose_b=True) + tf.eye(3, dtype=tf.float64)
    return tf.linalg.logdet(m) + tf.reduce_sum(tf.linalg.inv(m))


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        energies = tf.map_fn(energy, xb)
        loss = tf.reduce_sum(energies)
    w.assign_sub(0.02 * tape.gradient(loss, w))
    return energies


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    energies = train_step(xb)
    print("step", step, "rows", len(energies), f"sum {float(tf.reduce_sum(energies)):.12g} last {energies[-1]:.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
