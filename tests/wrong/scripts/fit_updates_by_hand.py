"""issue: fit: a train_step updates the weights itself"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(72)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class ByHand(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        for w, g in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True):
            w.assign_sub(0.05 * g)
        return {"error": loss}


inputs = keras.Input((6,))
model = ByHand(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs)))
model.compile()
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
