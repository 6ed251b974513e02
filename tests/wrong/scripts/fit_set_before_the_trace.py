"""issue: fit: a callback sets an attribute before the first step is traced"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(69)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Scaled(keras.layers.Layer):
    factor = 1.0

    def call(self, x):
        return x * self.factor


class Double(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        scaled.factor = 2.0


scaled = Scaled()
model = keras.Sequential([keras.Input((6,)), scaled, keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, callbacks=[Double()])
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
