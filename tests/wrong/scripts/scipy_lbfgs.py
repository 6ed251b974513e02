"""scipy.optimize minimizes a function of all rows whose value and gradient a tf.function gives"""

import numpy as np
import tensorflow as tf
from scipy.optimize import minimize

rng = np.random.default_rng(115)
x, y = tf.constant(rng.normal(size=(35, 4))), tf.constant(rng.integers(0, 2, 35).astype("float64"))
w = tf.Variable(np.zeros(4))


@tf.function
def value_and_gradient(features, labels):
    with tf.GradientTape() as tape:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.linalg.matvec(features, w))
        loss = tf.reduce_sum(losses) + 0.1 * tf.reduce_sum(w**2)
    return loss, tape.gradient(loss, w)


def objective(p):
    w.assign(p)
    value, gradient = value_and_gradient(x, y)
    return float(value), gradient.numpy()


found = minimize(objective, np.zeros(4), jac=True, method="L-BFGS-B", options={"maxiter": 5})
w.assign(found.x)
print("iterations", found.nit, "evaluations", found.nfev, f"loss {found.fun:.10g}")
print("weights", f"{float(tf.reduce_sum(w)):.9g} {float(tf.norm(w)):.9g}")
