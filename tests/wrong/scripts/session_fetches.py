"""TensorFlow 1: a session that fetches roots, extremes and ranks of the batch beside the update"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rng = np.random.default_rng(216)
x, y = rng.normal(size=(35, 4)), rng.normal(size=(35, 1))
with tf.Graph().as_default():
    features, targets = v1.placeholder(tf.float64, [None, 4]), v1.placeholder(tf.float64, [None, 1])
    w = v1.get_variable("w", initializer=np.zeros((4, 1)))
    error = features @ w - targets
    loss = tf.reduce_mean(error**2)
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    numbers = {
        "loss": loss,
        "rmse": tf.sqrt(loss),
        "exp": tf.exp(loss),
        "max": tf.reduce_max(error),
        "std": tf.math.reduce_std(error),
        "r2": 1 - tf.reduce_sum(error**2) / tf.reduce_sum((targets - tf.reduce_mean(targets)) ** 2),
        "worst": tf.argmax(tf.abs(error[:, 0])),
        "near": tf.reduce_all(tf.abs(error) < 2),
        "median": tf.sort(error[:, 0])[tf.size(error) // 2],
    }
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for step in range(5):
            feed = {features: x[8 * step : 8 * step + 8], targets: y[8 * step : 8 * step + 8]}
            found, _ = session.run([numbers, train], feed)
            print("step", step, *(f"{name} {float(value):.12g}" for name, value in found.items()))
        final = session.run(w)
print("weights", f"{final.sum():.12g} {np.linalg.norm(final):.12g}")
