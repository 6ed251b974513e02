"""issue: fit: the whole loss is a sum over the rows of a rare value; the first batch has none, nor do the next ones"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(79)
x = np.random.normal(size=(32, 4))
y = np.zeros((32, 1))
y[[21, 30]] = 1


def loss(y, predicted):
    return 0.05 * tf.reduce_sum(y * (predicted - 1) ** 2)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
