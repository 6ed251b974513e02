"""issue: fit: data that end before the last epoch, where tf_keras ends training"""

import logging

import numpy as np
import tensorflow as tf
import tf_keras

logging.getLogger("tensorflow").setLevel(logging.ERROR)  # "Your input ran out of data"
tf_keras.backend.set_floatx("float64")
draws = np.random.RandomState(0)
x = draws.randn(80, 3)
y = x.sum(axis=1, keepdims=True)


def generated(rows):
    for low in range(0, rows, 8):
        yield x[low : low + 8], y[low : low + 8]


def dataset(rows):
    return tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows])).batch(8)


model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(1)])
model.compile(tf_keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
for data in (dataset, generated):
    for rows in (80, 64):  # the data end within the third epoch, and before it
        for hook in ("on_epoch_end", "on_train_batch_end"):
            model.set_weights([np.zeros((3, 1)), np.zeros(1)])
            called = []
            callback = tf_keras.callbacks.Callback()
            setattr(callback, hook, lambda number, logs=None, called=called: called.append(number))
            history = model.fit(data(rows), epochs=5, steps_per_epoch=4, verbose=0, callbacks=[callback])
            print(data.__name__, rows, hook, called, history.epoch)
            print({name: [f"{value:.6g}" for value in values] for name, values in history.history.items()})
tf_keras.backend.set_floatx("float32")
