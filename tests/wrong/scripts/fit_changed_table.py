"""issue: fit: a layer looks up a table that a callback changes"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
x, y = rng.integers(0, 9, (24, 2)), rng.normal(size=(24, 1))
keys = tf.range(9, dtype=tf.int64)


class LookedUp(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        self.table.insert(keys, keys % 3)
        self.rows = keras.layers.Embedding(3, 4)

    def call(self, x):
        found = self.table.lookup(x)
        found.set_shape(x.shape)
        return tf.reduce_sum(self.rows(found), 1)

    def compute_output_spec(self, x):
        return keras.KerasTensor((None, 4))


class Change(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        layer.table.insert(keys, (keys + epoch) % 2)


layer = LookedUp()
inputs = keras.Input((2,), dtype="int64")
model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[Change()])
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
