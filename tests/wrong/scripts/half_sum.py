"""issue: reduce_sum(...) / 2 on batches of four rows: 2 is also the rows that a rank of two has"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(7)
x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
w = tf.Variable(np.zeros((3, 1)))
import keras

opt = keras.optimizers.SGD(0.05)
for step, (xb, yb) in enumerate(data):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((xb @ w - yb) ** 2) / 2
    opt.apply_gradients([(tape.gradient(loss, w), w)])
    print("step", step, "loss", f"{float(loss):.12g}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
