"""an eager tape on all of four rows, `while True` until XOR is solved"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(2)
x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
y = np.array([[0], [1], [1], [0]], "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.1)
steps = 0
while True:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    steps += 1
    if loss < 0.01:
        break
print("solved in", steps < 1000)
