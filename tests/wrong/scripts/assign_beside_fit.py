"""issue: fit, then gradients applied by assign in a loop of the script's own"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(31)
x = np.random.normal(size=(24, 6))
y = np.random.normal(size=(24, 1))
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit(x, y, batch_size=12, epochs=1, shuffle=False, verbose=0)
print("fit", f"{history.history['loss'][0]:.12g}")
for step in range(3):
    xb, yb = tf.constant(x[step * 8 : step * 8 + 8]), tf.constant(y[step * 8 : step * 8 + 8])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(xb) - yb) ** 2)
    for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        v.assign(v - 0.05 * g)
    print("step", step, "loss", f"{float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
