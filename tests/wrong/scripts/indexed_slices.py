"""an embedding's gradient (IndexedSlices), clipped by its global norm and scattered by hand"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(65)
tokens, y = rng.integers(0, 15, size=(35, 4)), rng.normal(size=(35, 1))
table = tf.Variable(rng.normal(size=(15, 3)))
w = tf.Variable(rng.normal(size=(3, 1)))
for step, (tb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((tokens, y)).batch(8)):
    with tf.GradientTape() as tape:
        pooled = tf.reduce_mean(tf.nn.embedding_lookup(table, tb), axis=1)
        loss = tf.reduce_mean((pooled @ w - yb) ** 2)
    (dt, dw), norm = tf.clip_by_global_norm(tape.gradient(loss, [table, w]), 0.5)
    assert isinstance(dt, tf.IndexedSlices)
    table.scatter_sub(tf.IndexedSlices(0.5 * dt.values, dt.indices))
    w.assign_sub(0.5 * dw)
    print("step", step, f"loss {float(loss):.12g} norm {float(norm):.12g} slices {dt.indices.shape[0]}")
print("weights", *[f"{float(tf.reduce_sum(v)):.12g} {float(tf.norm(v)):.12g}" for v in [table, w]])
