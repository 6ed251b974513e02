"""issue: keys of rows, and texts made of them, in tables; one changes in the step, eager and in a function"""

import numpy as np
import tensorflow as tf

tf.random.set_seed(6)
rng = np.random.default_rng(6)
x, y = rng.integers(0, 20, (24, 3)), rng.normal(size=(24, 1))
fixed = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(np.arange(15), np.arange(15) % 6), 5)
named = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([f"k{n}" for n in range(15)], np.arange(15)), 15)
counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
vectors = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float64, tf.constant([0.5, 0.25], tf.float64))
vectors.insert(tf.range(9, dtype=tf.int64), tf.constant(rng.normal(size=(9, 2))))
rows = tf.Variable(rng.normal(size=(6, 2)), name="rows")
texts = tf.Variable(rng.normal(size=(16, 2)), name="texts")
kernel = tf.Variable(rng.normal(size=(2, 1)), name="kernel")
weights = [rows, texts, kernel]


def step(keys, target):
    with tf.GradientTape() as tape:
        seen = counts.lookup(keys)
        found = tf.gather(rows, fixed.lookup(keys)) + vectors.lookup(keys)
        name = tf.strings.join(["k", tf.strings.as_string(keys)])
        found += tf.gather(texts, named.lookup(name)) * tf.cast(tf.strings.length(name), tf.float64)[..., None]
        hidden = tf.reduce_sum(found / (1 + tf.cast(seen, tf.float64)[..., None]), 1)
        loss = tf.reduce_mean(tf.square(hidden @ kernel - target))
    counts.insert(keys, counts.lookup(keys) + 1)
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.01 * tf.convert_to_tensor(gradient))
    return loss


data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
for run in (step, tf.function(step)):
    for keys, target in data:
        print("loss", f"{float(run(keys, target)):.12g}", int(tf.reduce_sum(counts.export()[1])))
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in weights])
