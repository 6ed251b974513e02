"""issue: fit: a train_step adds noise to the weights in every second step, in a branch of the graph"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))


class Noisy(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        kernel = self.layers[-1].kernel

        def shaken():
            return kernel.value.assign_add(0.01 * tf.random.normal(kernel.shape, dtype=kernel.dtype))

        tf.cond(tf.equal(self.optimizer.iterations % 2, 0), shaken, lambda: tf.identity(kernel.value))
        return logs


inputs = keras.Input((4,))
model = Noisy(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
