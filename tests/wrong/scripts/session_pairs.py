"""issue: a TensorFlow 1 session whose loss takes rows in pairs; a rank's part may be no whole number of pairs"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rng = np.random.default_rng(316)
x, y = rng.normal(size=(36, 4)), rng.normal(size=36)
with tf.Graph().as_default():
    features, targets = v1.placeholder(tf.float64, [None, 4]), v1.placeholder(tf.float64, [None])
    w = v1.get_variable("w", initializer=np.zeros((4, 1)))
    squares = (targets - (features @ w)[:, 0]) ** 2
    pairs = tf.reshape(squares[: tf.size(squares) // 2 * 2], [-1, 2])
    loss = tf.reduce_mean(pairs * [1.5, 0.5])
    train = v1.train.GradientDescentOptimizer(0.05).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        losses = []
        for step, start in enumerate((0, 8, 16, 24, 30)):  # batches of 8 rows, then of 6
            rows = slice(start, start + (8 if step < 3 else 6))
            _, value = session.run([train, loss], {features: x[rows], targets: y[rows]})
            losses.append(value)
        final = session.run(w)
for step, value in enumerate(losses):
    print("step", step, f"loss {value:.12g}")
print("weights", f"{final.sum():.12g} {np.linalg.norm(final):.12g}")
