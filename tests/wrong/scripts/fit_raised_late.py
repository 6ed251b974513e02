"""issue: fit: a callback raises the weight of a sum beside a mean, which has an effect from the fifth step on"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(77)
x = np.random.normal(size=(28, 4))
y = np.sin(x[:, :1])
step = keras.Variable(0.0, dtype="float64", trainable=False)


def loss(y, predicted):
    return ops.mean(ops.square(y - predicted)) + 0.02 * ops.relu(step - 4.0) * ops.sum(ops.square(predicted - 1))


class Raise(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        step.assign(step + 1.0)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss=loss)
history = model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[Raise()])
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
