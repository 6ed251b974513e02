"""weights moved by hand (assign_sub), without an optimizer"""

import numpy as np
import tensorflow as tf

w = tf.Variable([[0.5], [0.5]])
x = np.ones((8, 2), "float32")
for step in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 1.0) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
print("loss", float(loss))
