"""issue: fit: a layer masks its kernel in every call, so validation assigns it, too"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(72)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))
MASK = np.array([[1.0], [0.0], [1.0], [0.0]])


class Masked(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1), name="kernel")

    def call(self, x):
        self.kernel.assign(self.kernel * MASK)
        return keras.ops.matmul(x, self.kernel)


model = keras.Sequential([keras.Input((4,)), Masked()])
model(x)
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, validation_data=(x[:20], y[:20]))
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("val_loss", [f"{v:.6g}" for v in history.history["val_loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
