"""all rows at once, eager, every step; the loss has a term over columns and one over rows"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(120)
x = np.random.normal(size=(24, 5))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(5)])
opt = keras.optimizers.RMSprop(0.01)
for step in range(5):
    with tf.GradientTape() as tape:
        rebuilt = model(x)
        by_row = tf.sqrt(tf.reduce_sum((rebuilt - x) ** 2, axis=1))
        by_column = tf.sqrt(tf.reduce_sum((rebuilt - x) ** 2, axis=0))
        loss = tf.reduce_mean(by_row) + tf.reduce_mean(by_column)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, f"loss {float(loss):.12g} worst row {int(tf.argmax(by_row))}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
