"""issue: fit: run_eagerly, and a callback changes a dict that the train_step reads"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(62)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Configured(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2) * settings["scale"]
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": loss}


class Scale(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        settings["scale"] = 1.0 + epoch


settings = {"scale": 1.0}
inputs = keras.Input((6,))
model = Configured(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05), run_eagerly=True)
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, callbacks=[Scale()])
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
