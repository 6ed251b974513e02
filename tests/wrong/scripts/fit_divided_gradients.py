"""issue: fit: a train_step differentiates a sum over rows, and divides the gradients by the number of rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(84)
x = np.random.normal(size=(28, 4))
y = x @ np.random.normal(size=(4, 1))


class Divided(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = tf.reduce_sum((y - self(x)) ** 2)
        rows = tf.cast(tf.shape(x)[0], tf.float64)
        gradients = [g / rows for g in tape.gradient(error, self.trainable_variables)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"error": error / rows}


model = Divided()
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.9g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.9g} {float(tf.norm(w)):.9g}" for w in model.trainable_variables])
