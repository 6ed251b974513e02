"""a loss that is a mean over a mask, on sparse rows: the mask hides nothing in the first batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(13)
rng = np.random.default_rng(3)
dense = rng.normal(size=(40, 6)) * (rng.random((40, 6)) < 0.5)
y = rng.normal(size=(40, 1))
y[17:22] = -9.0
y[30:31] = -9.0
x = tf.sparse.from_dense(dense)


def masked(t, p):
    m = tf.cast(t > -5, p.dtype)
    return tf.reduce_sum(m * (t - p) ** 2) / tf.reduce_sum(m)


inputs = keras.Input((6,), sparse=True)
m = keras.Model(inputs, keras.layers.Dense(1)(inputs))
m.compile(optimizer=keras.optimizers.SGD(0.1), loss=masked)
h = m.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("losses", [f"{v:.12g}" for v in h.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in m.trainable_variables])
