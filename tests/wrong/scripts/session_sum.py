"""TensorFlow 1: a session on a graph with a sum loss, a penalty and a clipped norm, fed by hand"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rng = np.random.default_rng(116)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
with tf.Graph().as_default():
    features, targets = v1.placeholder(tf.float64, [None, 4]), v1.placeholder(tf.float64, [None, 1])
    w = v1.get_variable("w", initializer=rng.normal(size=(4, 1)))
    loss = tf.reduce_sum((features @ w - targets) ** 2) + 0.5 * tf.nn.l2_loss(w)
    optimizer = v1.train.GradientDescentOptimizer(0.05)
    (gradient, _), *_ = optimizer.compute_gradients(loss, [w])
    (clipped,), norm = tf.clip_by_global_norm([gradient], 1.0)
    train = optimizer.apply_gradients([(clipped, w)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for step in range(5):
            feed = {features: x[8 * step : 8 * step + 8], targets: y[8 * step : 8 * step + 8]}
            _, value, size = session.run([train, loss, norm], feed)
            print("step", step, f"loss {value:.12g} norm {size:.12g}")
        final = session.run(w)
print("weights", f"{final.sum():.12g} {np.linalg.norm(final):.12g}")
