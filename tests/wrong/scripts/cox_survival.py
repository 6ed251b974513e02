"""Cox's partial likelihood: rows are sorted by time, risk sets by a cumulative logsumexp"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(100)
x = rng.normal(size=(35, 3))
times, events = rng.exponential(size=35), (rng.random(35) < 0.7).astype("float64")
w = tf.Variable(tf.zeros([3, 1], tf.float64))


@tf.function
def train_step(xb, tb, eb):
    order = tf.argsort(tb, direction="DESCENDING")
    xb, eb = tf.gather(xb, order), tf.gather(eb, order)
    with tf.GradientTape() as tape:
        risk = tf.squeeze(xb @ w, 1)
        at_risk = tf.math.cumulative_logsumexp(risk)
        loss = -tf.reduce_sum((risk - at_risk) * eb) / (tf.reduce_sum(eb) + 1e-9)
    w.assign_sub(0.3 * tape.gradient(loss, w))
    return loss, tf.cumsum(eb)[-1]


for step, batch in enumerate(tf.data.Dataset.from_tensor_slices((x, times, events)).batch(8)):
    loss, count = train_step(*batch)
    print("step", step, f"loss {float(loss):.12g} events {int(count)}")
print("weights", f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}")
