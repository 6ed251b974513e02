"""Boolean masks, where with indices, scatter_nd, tensor_scatter, unique, sort, segment sums: eager."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x, y = np.random.randn(25, 4), np.random.randint(0, 3, 25)
w = tf.Variable(np.random.randn(4, 3))
for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(7):
    with tf.GradientTape() as tape:
        z = xb @ w
        hard = tf.where(tf.reduce_max(z, 1) > 0.5)[:, 0]
        picked = tf.gather(z, hard)
        chosen = tf.gather_nd(z, tf.stack([tf.range(len(yb), dtype=tf.int64), yb], 1))
        masked = tf.boolean_mask(z, yb != 1)
        u, idx, counts = tf.unique_with_counts(yb)
        per_class = tf.math.unsorted_segment_mean(z, yb, 3)
        table = tf.tensor_scatter_nd_add(tf.zeros((3, 3), tf.float64), yb[:, None], z)
        scattered = tf.scatter_nd(yb[:, None], chosen, (3,))
        ordered = tf.sort(chosen)
        gaps = ordered[1:] - ordered[:-1]
        halves = tf.split(z, [len(z) // 2, len(z) - len(z) // 2])
        dyn = tf.dynamic_partition(z, tf.cast(yb, tf.int32), 3)
        loss = tf.reduce_mean(picked**2) + tf.reduce_mean(masked**2) - 0.1 * tf.reduce_sum(per_class)
        loss += tf.reduce_mean(table**2) + tf.reduce_max(scattered) + tf.reduce_sum(gaps**2) + tf.reduce_mean(halves[0])
        loss += tf.reduce_sum(dyn[2]) * 0.1 + tf.reduce_mean(z[::2]) + tf.reduce_sum(z[-1] * z[0])
        loss += tf.reduce_sum(tf.concat([z[1:], z[:1]], 0) * z) * 0.1 + tf.reduce_mean(tf.pad(z, [[1, 1], [0, 0]]))
    w.assign_sub(0.01 * tape.gradient(loss, w))
    print(
        f"{float(loss):.12g} {hard.numpy().tolist()} {u.numpy().tolist()} {counts.numpy().tolist()} {idx.shape} {[len(d) for d in dyn]}"
    )
print(f"{float(tf.reduce_sum(w)):.12g}")
