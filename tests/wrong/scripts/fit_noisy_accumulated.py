"""issue: fit: an optimizer that adds noise, within the branch of gradient accumulation"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))


class Noisy(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        noise = 0.1 * tf.random.normal(variable.shape, dtype=variable.dtype)
        super().update_step(gradient + noise, variable, learning_rate)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=Noisy(0.05, gradient_accumulation_steps=2), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
