"""issue: fit: layers of a model without Input, whose `build` reads the batch size that Keras traces for"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(83)
x = np.random.normal(size=(24, 6))
y = np.random.normal(size=(24, 1))


class ByRows(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.rows = shape[0] or 1

    def call(self, x):
        return x * self.scale * (1.0 + 0.01 * self.rows)


for batch in (8, 12, 10):  # the last leaves a part
    model = keras.Sequential([ByRows(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    history = model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    print(batch, model.layers[0].rows, model.input_shape, [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
