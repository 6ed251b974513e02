"""issue: fit: callbacks that evaluate at the beginning of an epoch, and before its first batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(74)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
inputs = keras.Input((6,))
model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])


class AtEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("evaluated", *[f"{v:.12g}" for v in self.model.evaluate(x[:8], y[:8], verbose=0)])


class AtBatch(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            print("evaluated", *[f"{v:.12g}" for v in self.model.evaluate(x[:8], y[:8], verbose=0)])

    def on_train_batch_end(self, batch, logs=None):
        print("batch", batch, *[f"{logs[k]:.12g}" for k in sorted(logs)])


for callback in (AtEpoch(), AtBatch()):
    history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
    print("history", *[f"{v:.12g}" for k in sorted(history.history) for v in history.history[k]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
