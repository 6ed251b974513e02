"""fit: a layer of the script's own that takes sparse tensors only, in a model that Keras does not build before fit."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(0)
rows = np.random.default_rng(0).normal(size=(23, 8))


class Projected(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(8, 4))

    def call(self, inputs):
        return tf.sparse.sparse_dense_matmul(inputs, self.kernel)


model = keras.Sequential([keras.Input((8,), sparse=True), Projected(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
batches = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(rows * (rows > 0)), rows[:, :1])).batch(8)
history = model.fit(batches, epochs=2, shuffle=False, verbose=0)
print(*(f"{loss:.12g}" for loss in history.history["loss"]))
for weight in model.get_weights():
    print(f"{weight.sum():.12g} {np.linalg.norm(weight):.12g}")
