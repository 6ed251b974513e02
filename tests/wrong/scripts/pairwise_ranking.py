"""a pairwise hinge loss between positive and negative rows (RankNet style), eager, hand-sliced arrays"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(48)
x = np.random.normal(size=(35, 5))
y = (x[:, 0] + 0.3 * np.random.normal(size=35) > 0).astype("float64")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.1)
for step in range(5):
    xb, yb = x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8]
    with tf.GradientTape() as tape:
        score = model(xb, training=True)[:, 0]
        difference = score[:, None] - score[None, :]
        wanted = tf.constant(yb[:, None] > yb[None, :], tf.float64)
        loss = tf.reduce_sum(wanted * tf.nn.relu(1.0 - difference)) / tf.maximum(tf.reduce_sum(wanted), 1.0)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, "pairs", int(tf.reduce_sum(wanted)), f"loss {float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
