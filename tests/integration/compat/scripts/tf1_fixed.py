"""TF1: a batch size that is fixed in the graph"""

import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
BATCH = 8
x = tf.compat.v1.placeholder(tf.float32, [BATCH, 3])
w = tf.compat.v1.get_variable("w", [3, 1])
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.compat.v1.Session() as session:
    session.run(tf.compat.v1.global_variables_initializer())
    for _ in range(3):
        print(session.run([train, loss], {x: np.ones((BATCH, 3))})[1])
