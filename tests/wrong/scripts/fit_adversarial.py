"""issue: fit: gradients by inputs, of sums over samples, make inputs and a penalty; the loss itself is a mean"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x = np.random.normal(size=(32, 4))
y = x @ np.random.normal(size=(4, 1))


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum((y - self(x)) ** 2)
        x += 0.1 * tf.sign(tape.gradient(total, x))
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = tf.reduce_sum(self(x))
            slopes = tf.reduce_sum(inner.gradient(total, x) ** 2, axis=1)
            loss = tf.reduce_mean((y - self(x)) ** 2) + 0.1 * tf.reduce_mean(slopes)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"error": loss}


model = Adversarial()
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.9g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
