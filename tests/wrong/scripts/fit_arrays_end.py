"""issue: fit: arrays that end before the last epoch, where tf_keras ends training"""

import logging

import numpy as np
import tf_keras

logging.getLogger("tensorflow").setLevel(logging.ERROR)  # "Your input ran out of data"
tf_keras.utils.set_random_seed(1)
tf_keras.backend.set_floatx("float64")
draws = np.random.RandomState(0)
x = draws.randn(70, 3)
y = x.sum(axis=1, keepdims=True)
for words in (
    {"steps_per_epoch": 9},
    {"steps_per_epoch": 10},
    {"steps_per_epoch": 10, "initial_epoch": 1},
    {"steps_per_epoch": 5},
):
    model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(tf_keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, **words)
    print(words, history.epoch)
    print({name: [f"{value:.6g}" for value in values] for name, values in history.history.items()})
tf_keras.backend.set_floatx("float32")
