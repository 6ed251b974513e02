"""issue: fit: a sum over the rows of a rare label beside a mean, in a function with a signature; the first batch has none"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(77)
x = np.random.normal(size=(30, 4))
y = np.sort(np.random.randint(0, 3, size=30))


@tf.function(input_signature=[tf.TensorSpec(None, tf.float64), tf.TensorSpec([None, 3], tf.float64)])
def loss(labels, logits):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
    rare = tf.reduce_sum(tf.square(logits[:, 2] - 1) * tf.cast(labels == 2, logits.dtype))
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(errors) + 0.1 * rare


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
