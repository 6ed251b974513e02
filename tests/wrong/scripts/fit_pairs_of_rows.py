"""issue: fit: a loss of pairs of neighbouring rows; half of the last batch is no whole number of pairs"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(78)
x = np.random.normal(size=(34, 4))


def of_pairs(_, predicted):
    pairs = tf.reshape(predicted, [-1, 2, 3])
    apart = tf.reduce_sum((pairs[:, 0] - pairs[:, 1]) ** 2, axis=-1)
    return tf.reduce_mean(apart + (tf.norm(pairs[:, 0], axis=-1) - 1) ** 2)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss=of_pairs)
history = model.fit(x, np.zeros((34, 1)), batch_size=12, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
