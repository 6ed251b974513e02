"""issue: fit with a loss that compares rows, in a script that warms up by a loop of its own"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(19)
x = np.random.normal(size=(24, 6))
y = np.random.normal(size=(24, 1))


def centred(y_true, y_pred):
    error = y_true - y_pred
    return tf.reduce_sum((error - tf.reduce_mean(error)) ** 2)


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.01)
for step in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[8 * step : 8 * step + 8]) - y[8 * step : 8 * step + 8]) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, "loss", f"{float(loss):.12g}")
model.compile(optimizer=keras.optimizers.SGD(0.005), loss=centred)
history = model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
print("fit", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
