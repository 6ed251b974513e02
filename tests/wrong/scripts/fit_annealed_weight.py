"""issue: fit: a callback raises a plain tf.Variable that the loss reads"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(60)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))

weight = tf.Variable(0.0, dtype="float64")


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        weight.assign(0.1 * epoch)


def penalised(true, predicted):
    return tf.reduce_mean((true - predicted) ** 2, -1) + weight * tf.reduce_mean(tf.abs(predicted), -1)


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss=penalised)
history = model.fit(x, y, batch_size=12, epochs=4, shuffle=False, verbose=0, callbacks=[Anneal()])
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
