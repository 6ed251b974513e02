"""Gauss-Newton with tape.jacobian: the normal equations of the whole batch are solved"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(83)
x = rng.normal(size=(34, 2))
y = np.exp(0.3 * x[:, 0]) + 0.5 * x[:, 1] + 0.05 * rng.normal(size=34)
p = tf.Variable([0.1, 0.2], dtype=tf.float64)
for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    with tf.GradientTape() as tape:
        residual = tf.exp(p[0] * xb[:, 0]) + p[1] * xb[:, 1] - yb
    jacobian = tape.jacobian(residual, p)
    normal = tf.matmul(jacobian, jacobian, transpose_a=True) + 0.01 * tf.eye(2, dtype=tf.float64)
    p.assign_sub(tf.linalg.solve(normal, tf.linalg.matvec(jacobian, residual, transpose_a=True)[:, None])[:, 0])
    print("step", step, "jacobian", jacobian.shape, f"loss {float(tf.reduce_sum(residual**2)):.12g}")
print("weights", f"{float(tf.reduce_sum(p)):.12g} {float(tf.norm(p)):.12g}")
