"""issue: fit: a mean over the labels that are not -1; the first batch has no -1"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(31)
x = np.random.normal(size=(36, 6))
y = np.random.randint(0, 3, 36).astype("int32")
y[12:] = np.where(np.random.uniform(size=24) < 0.5, -1, y[12:])


def loss(labels, logits):
    valid = tf.cast(labels >= 0, logits.dtype)
    each = keras.losses.sparse_categorical_crossentropy(tf.maximum(labels, 0), logits, from_logits=True)
    return tf.reduce_sum(each * valid) / tf.maximum(tf.reduce_sum(valid), 1.0)


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.5), loss)
history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
print("losses", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
