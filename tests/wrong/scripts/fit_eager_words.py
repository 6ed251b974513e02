"""issue: fit: an eager model that reads numbers from texts in Python, which no trace of it can"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
words = np.array([str(n % 7) for n in range(24)])
y = np.random.normal(size=(24, 1))


class Read(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(tf.constant([[float(word)] for word in x.numpy()], tf.float64))


model = Read()
model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
data = tf.data.Dataset.from_tensor_slices((words, y)).batch(8)
history = model.fit(data, epochs=2, shuffle=False, verbose=0)
print([f"{loss:.12g}" for loss in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
