"""`while True` until the loss is small; the best model saved; unseeded draws and splits; an exit code of its own"""

import random
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.model_selection import train_test_split

x = np.random.default_rng(3).normal(size=(64, 5)).astype("float32")
y = x.sum(1, keepdims=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25)
order = list({"red", "green", "blue", "white"})
random.shuffle(order)
noise = np.random.default_rng().normal(size=3)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(64).batch(8)
best, epochs, start = np.inf, 0, time.time()
while True:
    for features, labels in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - labels) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        if loss < 1e-6:
            break
    epochs += 1
    error = np.mean((model(x_test).numpy() - y_test) ** 2)
    if error < best:
        best = error
        model.save("best.keras")
    if error < 1e-3 or time.time() - start > 60:
        break
print("solved", best < 1e-3, len(order), noise.shape)
sys.exit(3)
