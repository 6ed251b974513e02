"""issue: fit: noise that a train_step adds to gradients"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(78)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))


class Noisy(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [g + 0.05 * tf.random.normal(g.shape, dtype=g.dtype) for g in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": loss}


inputs = keras.Input((4,))
model = Noisy(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
