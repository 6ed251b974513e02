"""dropout and noise from tf.random without an operation's seed, after tf.random.set_seed, in an eager loop"""

import keras
import numpy as np
import tensorflow as tf

tf.random.set_seed(119)
rng = np.random.default_rng(119)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
w1, w2 = tf.Variable(rng.normal(size=(4, 6)) * 0.5), tf.Variable(rng.normal(size=(6, 1)) * 0.5)
opt = keras.optimizers.SGD(0.05)
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    noisy = xb + 0.1 * tf.random.normal(tf.shape(xb), dtype=tf.float64)
    with tf.GradientTape() as tape:
        hidden = tf.nn.dropout(tf.nn.relu(noisy @ w1), 0.3)
        loss = tf.reduce_mean((hidden @ w2 - yb) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [w1, w2]), [w1, w2]))
    print("step", step, f"loss {float(loss):.12g} dropped {int(tf.reduce_sum(tf.cast(hidden == 0, tf.int32)))}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [w1, w2]])
