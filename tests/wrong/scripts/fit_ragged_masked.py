"""a loss that is a mean over a mask, on ragged rows: the mask hides nothing in the first batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(13)
rng = np.random.default_rng(3)
lengths = rng.integers(1, 6, 40)
x = tf.RaggedTensor.from_row_lengths(rng.normal(size=lengths.sum()), lengths)
y = rng.normal(size=(40, 1))
y[17:22] = -9.0
y[30:31] = -9.0


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.b = keras.layers.Dense(1)

    def train_step(self, data):
        xb, yb = data
        xb = xb.to_tensor(shape=[None, 6])
        with tf.GradientTape() as tape:
            m = tf.cast(yb > -5, tf.float64)
            loss = tf.reduce_sum(m * (yb - self.b(xb)) ** 2) / tf.reduce_sum(m)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"error": loss}


m = M()
m.b.build((None, 6))
m.compile(optimizer=keras.optimizers.SGD(0.1))
h = m.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, shuffle=False, verbose=0)
print("errors", [f"{v:.12g}" for v in h.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in m.trainable_variables])
