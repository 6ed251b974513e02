"""prototypical networks: the first rows of a batch are the support, the others the queries"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(102)
x = np.random.normal(size=(5, 9, 4)) + np.repeat(np.random.normal(size=(5, 3, 4)), 3, axis=1)
episodes = x.reshape(45, 4)[np.arange(45).reshape(5, 3, 3).transpose(0, 2, 1).reshape(-1)]
encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh")])
opt = keras.optimizers.Adam(0.02)


@tf.function
def train_step(rows):
    with tf.GradientTape() as tape:
        z = encoder(rows)
        prototypes, queries = z[:3], z[3:]
        distances = tf.reduce_sum((queries[:, None] - prototypes[None]) ** 2, -1)
        labels = tf.tile(tf.range(3), [2])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, -distances)
        loss = tf.reduce_mean(losses)
    opt.apply_gradients(zip(tape.gradient(loss, encoder.trainable_variables), encoder.trainable_variables))
    return loss, tf.reduce_sum(tf.cast(tf.argmin(distances, 1, tf.int32) == labels, tf.int32))


for step, rows in enumerate(tf.data.Dataset.from_tensor_slices(episodes).batch(9)):
    loss, right = train_step(rows)
    print("step", step, f"loss {float(loss):.12g} right {int(right)} of 6")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in encoder.trainable_variables])
