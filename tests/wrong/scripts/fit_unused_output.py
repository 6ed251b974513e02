"""issue: fit: a layer's call is a tf.function with a result that the loss does not use, whose weight only decays"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(79)
x = np.random.normal(size=(32, 4))
y = x @ np.random.normal(size=(4, 1))


class Two(keras.layers.Layer):
    def build(self, shape):
        self.used, self.unused = (self.add_weight(shape=(shape[-1], 1)) for _ in range(2))

    @tf.function
    def call(self, x):
        return tf.matmul(x, self.used), tf.matmul(x, self.unused)


inputs = keras.Input((4,))
model = keras.Model(inputs, Two()(inputs)[0])
model.compile(optimizer=keras.optimizers.AdamW(0.1, weight_decay=0.1), loss="mse")
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
