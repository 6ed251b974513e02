"""a dataset iterated inside a tf.function; the epoch's function adds up losses, rows and hits"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(70)
x = np.random.normal(size=(35, 4))
y = (x[:, 0] > 0).astype("float64")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.2)
opt.build(model.trainable_variables)


@tf.function
def epoch(batches):
    total, hits, rows = tf.constant(0.0, tf.float64), tf.constant(0), tf.constant(0)
    for xb, yb in batches:
        with tf.GradientTape() as tape:
            logits = model(xb, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(yb, logits)
            loss = tf.reduce_sum(losses) / 4.0 + tf.reduce_mean(logits) ** 2
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        total += tf.reduce_sum(losses)
        hits += tf.reduce_sum(tf.cast((logits > 0) == (yb > 0.5), tf.int32))
        rows += tf.shape(xb)[0]
    return total / tf.cast(rows, tf.float64), hits, rows


loss, hits, rows = epoch(ds)
print("epoch", f"loss {float(loss):.12g}", "hits", int(hits), "of", int(rows))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
