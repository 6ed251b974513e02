"""issue: fit: a train_step decays weights itself, and adds a sum over rare rows, none of which is compared, to a mean"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(83)
x = np.random.normal(size=(32, 4))
y = x @ np.random.normal(size=(4, 1))
y[[21, 30]] = 1e9


class Decayed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            rare, predicted = tf.cast(y > 1e8, y.dtype), self(x)
            error = tf.reduce_mean(((1 - rare) * y - predicted) ** 2) + 0.05 * tf.reduce_sum(rare * predicted**2)
        gradients = tape.gradient(error, self.trainable_variables)
        decayed = [0.5 * g + 0.001 * w for g, w in zip(gradients, self.trainable_variables, strict=True)]
        self.optimizer.apply_gradients(zip(decayed, self.trainable_variables))
        return {"error": error}


model = Decayed()
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.9g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.9g} {float(tf.norm(w)):.9g}" for w in model.trainable_variables])
