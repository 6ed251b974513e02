"""issue: fit: a layer that looks texts and numbers up in tables, and rewrites, measures and hashes the texts"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
words = np.array([f"W{n}-{'x' * (n % 4)}" for n in range(12)])
texts = tf.constant(words[rng.integers(0, 12, (26, 2))].tolist())
numbers = rng.integers(0, 9, (26, 2))
targets = rng.normal(size=(26, 1))


def table(keys, values, default):
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


class LookedUp(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.of_words = table([f"w{n}" for n in range(12)], np.arange(12) % 5, 5)
        self.of_numbers = table(np.arange(7), [f"{n}.5" for n in range(7)], "-1")
        self.rows = keras.layers.Embedding(6, 3)
        self.buckets = keras.layers.Embedding(4, 3)

    def call(self, inputs):
        text, number = inputs
        lower = tf.strings.regex_replace(tf.strings.lower(text), "-x*", "")
        found = self.of_words.lookup(tf.strings.strip(lower))
        long = tf.strings.join([tf.strings.substr(text, 0, 3), tf.strings.as_string(number)], "/")
        bucket = tf.strings.to_hash_bucket_fast(tf.strings.upper(long), 4)
        looked_up = tf.strings.to_number(self.of_numbers.lookup(number), tf.float64)
        measured = tf.cast(tf.strings.length(text), tf.float64)
        matched = tf.cast(tf.strings.regex_full_match(text, ".*-x+"), tf.float64)
        rows = tf.reduce_sum(self.rows(found) * self.buckets(bucket), 1)
        return tf.concat([rows, looked_up / 5, measured / 7, matched], 1)


inputs = keras.Input((2,), dtype="string"), keras.Input((2,), dtype="int64")
model = keras.Model(inputs, keras.layers.Dense(1)(LookedUp()(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
history = model.fit((texts, numbers), targets, batch_size=10, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
