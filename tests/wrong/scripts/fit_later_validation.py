"""issue: fit: a layer that needs all rows in validation alone, whose data the second fit has first"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
x, y = np.random.normal(size=(24, 3)) + 1, np.random.normal(size=(24, 1))


class Centred(keras.layers.Layer):
    def call(self, x, training=False):
        return x if training else x - tf.reduce_mean(x, axis=0, keepdims=True)


model = keras.Sequential([keras.Input((3,)), Centred(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
options = {"validation_data": (x[:12], y[:12]), "validation_batch_size": 6}
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, **options)
print({name: [f"{value:.12g}" for value in values] for name, values in history.history.items()})
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
