"""issue: fit: rows of other lengths, padded in the step, so that a part of a batch has another width than the batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(82)
lengths = [3, 2, 1, 2, 3, 8, 7, 1, 2, 5, 4, 1, 1, 1, 6, 2]
tokens = tf.RaggedTensor.from_row_lengths(np.random.randint(1, 20, size=sum(lengths)), lengths)
y = np.random.normal(size=(16, 1))


class Pooled(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = keras.layers.Embedding(20, 5), keras.layers.Dense(1)

    def call(self, tokens):
        tokens = tokens.to_tensor() if isinstance(tokens, tf.RaggedTensor) else tokens
        mask = tf.cast(tokens > 0, tf.float64)[:, :, None]
        return self.out(tf.reduce_sum(self.embedding(tokens) * mask, axis=1) / tf.reduce_sum(mask, axis=1))


model = Pooled()
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((tokens, y)).batch(8), epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.9g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.9g} {float(tf.norm(w)):.9g}" for w in model.trainable_variables])
