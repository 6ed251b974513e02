"""issue: fit: the test_step of one object, which returns a sum and a maximum"""

import types

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(93)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))


def test_step(self, data):
    x, y = data
    squares = tf.square(self(x, training=False) - y)
    return {"sse": tf.reduce_sum(squares), "worst": tf.reduce_max(squares)}


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.test_step = types.MethodType(test_step, model)
model.compile(keras.optimizers.SGD(0.05), "mse")
options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
for name, values in model.fit(x, y, validation_data=(x, y), **options).history.items():
    print(name, [f"{v:.6g}" for v in values])
