"""Lookahead by hand: slow weights are pulled every two steps; the loss keeps rows above the mean loss only"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(106)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
slow = [tf.Variable(v) for v in model.trainable_variables]
opt = keras.optimizers.SGD(0.2)
for step, (xb, yb) in enumerate(ds, 1):
    with tf.GradientTape() as tape:
        losses = keras.losses.mean_squared_error(yb, model(xb))
        hard = losses[losses >= tf.reduce_mean(losses)]
        loss = tf.reduce_sum(hard) / tf.cast(tf.size(hard), tf.float64)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if step % 2 == 0:
        for s, v in zip(slow, model.trainable_variables):
            s.assign(s + 0.5 * (v - s))
            v.assign(s)
    print("step", step, "hard rows", len(hard), f"loss {float(loss):.12g}")
print(
    "weights",
    *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [*model.trainable_variables, *slow]],
)
