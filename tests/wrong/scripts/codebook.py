"""issue: vector quantization: the codebook is moved in the step to the mean of the rows nearest to each code"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(14)
x = np.random.normal(size=(35, 6))
ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
decoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
codes = tf.Variable(np.random.normal(size=(5, 4)), trainable=False)
opt = keras.optimizers.Adam(0.01)
variables = encoder.trainable_variables + decoder.trainable_variables


@tf.function
def train_step(xb):
    with tf.GradientTape() as tape:
        z = encoder(xb)
        distances = tf.reduce_sum((z[:, None] - codes[None]) ** 2, -1)
        nearest = tf.argmin(distances, 1)
        q = tf.gather(codes, nearest)
        straight = z + tf.stop_gradient(q - z)
        loss = tf.reduce_mean((decoder(straight) - xb) ** 2) + 0.25 * tf.reduce_mean((z - tf.stop_gradient(q)) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    onehot = tf.one_hot(nearest, 5, dtype=tf.float64)
    counts = tf.reduce_sum(onehot, 0)
    means = tf.matmul(onehot, z, transpose_a=True) / tf.maximum(counts, 1.0)[:, None]
    codes.assign(tf.where(counts[:, None] > 0, 0.9 * codes + 0.1 * means, codes))
    return loss, counts


for step, xb in enumerate(ds):
    loss, counts = train_step(xb)
    print("step", step, f"loss {float(loss):.12g}", "used", counts.numpy().astype(int).tolist())
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [*variables, codes]])
