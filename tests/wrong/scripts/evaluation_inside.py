"""issue: an evaluation loop with counts and summed losses, inside the training loop"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(22)
x = np.random.normal(size=(35, 4))
y = (x[:, 0] + x[:, 1] > 0).astype("float64")[:, None]
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
test = tf.data.Dataset.from_tensor_slices((x[:13], y[:13])).batch(5)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.02)
for step, (xb, yb) in enumerate(train):
    with tf.GradientTape() as tape:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(yb, model(xb))
        loss = tf.reduce_mean(losses)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    total, right, rows = 0.0, 0, 0
    for xt, yt in test:
        logits = model(xt, training=False)
        total += float(tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(yt, logits)))
        right += int(tf.math.count_nonzero((logits > 0) == (yt > 0.5)))
        rows += xt.shape[0]
    print("step", step, f"loss {float(loss):.12g} test {total / rows:.12g} {right}/{rows}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
