"""placements: SimCLR's NT-Xent over two noisy views of the batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(33)
x = np.random.normal(size=(35, 6))
views = [x + 0.1 * np.random.normal(size=x.shape) for _ in range(2)]
ds = tf.data.Dataset.from_tensor_slices(tuple(views)).batch(8)
encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(4)])
opt = keras.optimizers.Adam(0.01)


@tf.function
def train_step(a, b):
    n = tf.shape(a)[0]
    with tf.GradientTape() as tape:
        z = tf.math.l2_normalize(tf.concat([encoder(a), encoder(b)], 0), axis=1)
        logits = tf.matmul(z, z, transpose_b=True) / 0.5
        logits = logits - 1e9 * tf.eye(2 * n, dtype=tf.float64)
        labels = tf.concat([tf.range(n, 2 * n), tf.range(n)], 0)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    grads = tape.gradient(loss, encoder.trainable_variables)
    opt.apply_gradients(zip(grads, encoder.trainable_variables))
    hits = tf.reduce_sum(tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.int32))
    return loss, hits


for step, (a, b) in enumerate(ds):
    loss, hits = train_step(a, b)
    print("step", step, f"loss {float(loss):.12g}", "hits", int(hits), "of", 2 * len(a))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in encoder.trainable_variables])
