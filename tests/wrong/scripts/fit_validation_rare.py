"""issue: fit: a layer adds a sum over rare rows to the loss of validation; its first batch has none"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(70)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
x[[17, 25]] *= 9.0


class OnlyInTest(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            self.add_loss(0.01 * tf.reduce_sum(tf.nn.relu(tf.abs(x) - 5)))
        return x


model = keras.Sequential([keras.Input((6,)), OnlyInTest(), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse")
validation = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, validation_data=validation)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("val_loss", [f"{v:.6g}" for v in history.history["val_loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
