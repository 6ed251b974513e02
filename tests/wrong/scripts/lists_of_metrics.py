"""Losses kept in lists of tensors, plotted means, np.mean of them, f-strings, comparisons, sorted."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x, y = np.random.randn(31, 4), np.random.randint(0, 2, 31)
model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
opt = keras.optimizers.Adam(0.05)
losses, correct, rows, wrong = [], 0, [], []
for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
    with tf.GradientTape() as tape:
        logits = model(xb)
        each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(yb, logits)
        loss = tf.math.reduce_mean(each)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    losses.append(loss)
    hit = tf.equal(tf.argmax(logits, axis=1), yb)
    correct += tf.reduce_sum(tf.cast(hit, tf.int32))
    rows.extend(each)
    wrong += [i for i, h in enumerate(hit) if not h]
    print(
        f"{np.mean(losses):.12g} {max(each):.12g} {min(losses):.12g} {int(correct)} {len(rows)} {sorted(float(e) for e in each)[0]:.9f} {loss.numpy().item():.9f}"
    )
print(
    np.stack(rows).shape,
    f"{np.array(losses).std():.12g}",
    wrong,
    tf.stack(losses).shape,
    f"{sum(rows) / len(rows):.12g}",
)
print(
    f"{np.percentile(tf.concat([tf.stack(rows)], 0), 90):.12g}",
    tf.math.confusion_matrix(y, tf.argmax(model(x), 1)).numpy().tolist(),
)
