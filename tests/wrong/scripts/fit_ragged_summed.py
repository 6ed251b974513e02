"""issue: fit: ragged rows, padded to the longest and summed, so that padding does not count"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(85)
rng = np.random.default_rng(5)
lengths = np.concatenate([np.full(12, 5), rng.integers(1, 9, 14)])
x = tf.RaggedTensor.from_row_lengths(rng.normal(size=(lengths.sum(), 3)), lengths)
y = rng.normal(size=(26, 1))


class Padded(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(tf.reduce_sum(x.to_tensor(), 1))


model = Padded()
model.dense.build((None, 3))
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(12), epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
