"""A loop over a dataset inside a tf.function that is left early, by a count of rows; a sum goes from batch to batch."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(0)
draws = np.random.RandomState(0)
rows, labels = draws.randn(23, 8), draws.randint(0, 3, 23)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(0.01)
batches = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(4).repeat()


@tf.function
def epoch(batches):
    total, seen = tf.constant(0.0, tf.float64), 0
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        total += loss
        seen += tf.shape(x)[0]
        if seen >= 20:
            break
    return total, seen


total, seen = epoch(batches)
print("loss", f"{float(total) / int(seen):.12g}", "rows", int(seen))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g}" for w in model.weights])
