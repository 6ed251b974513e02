"""issue: compile(loss=a sum of the script's own) and train_on_batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(18)
x = np.random.normal(size=(35, 6))
y = np.random.normal(size=(35, 1))


def summed(y_true, y_pred):
    return tf.reduce_sum(tf.square(y_true - y_pred))


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.002), loss=summed)
for step in range(5):
    rows = slice(step * 8, step * 8 + 8)
    loss = model.train_on_batch(x[rows], y[rows])
    print("step", step, "mean of losses", f"{float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
