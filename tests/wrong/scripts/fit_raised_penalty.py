"""issue: fit: a callback raises the weight of a term that compares rows, after the first epoch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(30)
x = np.random.normal(size=(24, 6))
y = np.random.normal(size=(24, 1))
weight = keras.Variable(0.0, trainable=False, name="penalty_weight")


class Spread(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.weight = weight

    def call(self, z):
        self.add_loss(self.weight * tf.reduce_sum((z - tf.reduce_mean(z, 0)) ** 2))
        return z


class Raise(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        weight.assign(0.05 * epoch)


inputs = keras.Input((6,))
outputs = keras.layers.Dense(1)(Spread()(keras.layers.Dense(8, activation="tanh")(inputs)))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0, callbacks=[Raise()])
print("losses", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
