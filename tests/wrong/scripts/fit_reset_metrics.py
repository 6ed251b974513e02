"""issue: fit: a callback resets the metrics in each step"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(66)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Reset(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, callbacks=[Reset()])
print("loss", [f"{v:.6g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
