"""issue: fit: embeddings of positions, whose indices are the same on every rank or depend on the rows, under Adam"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
draws = np.random.RandomState(0)
tokens, labels = draws.randint(0, 20, (32, 6)), draws.randint(0, 5, (32, 6))
POSITIONS = {
    "range": lambda x: tf.range(6),
    "length": lambda x: tf.range(tf.shape(x)[-1]),
    "unstacked": lambda x: tf.range(tf.unstack(tf.shape(x))[1]),
    "function": tf.function(lambda x: tf.range(tf.shape(x)[1])),
    "twice": lambda x: tf.constant([0, 1, 2, 0, 1, 2]),
    "tiled": lambda x: tf.tile(tf.range(tf.shape(x)[1])[None], [tf.shape(x)[0], 1]),
    "counted": lambda x: tf.cumsum(tf.ones_like(x), axis=1) - 1,
    "broadcast": lambda x: tf.broadcast_to(tf.range(6)[None], tf.shape(x)),
    "zeros": lambda x: tf.zeros_like(x),
    "segments": lambda x: tf.zeros((x.shape[0] or tf.shape(x)[0], 6), tf.int32),
    "rows": lambda x: x % 6,
}


TOGETHER = ("range", "length", "unstacked", "function"), ("twice", "tiled", "counted", "broadcast")
ALONE = ("zeros",), ("segments",), ("rows",)


class Positions(keras.layers.Layer):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.table = kind, keras.layers.Embedding(6, 4)

    def call(self, x):
        return self.table(POSITIONS[self.kind](x)) + 0.01 * tf.cast(x[..., None], tf.float64)


for kinds in (*TOGETHER, *ALONE):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,), dtype="int32")
    found = [Positions(kind)(inputs) for kind in kinds]
    joined = keras.layers.Concatenate()(found) if len(found) > 1 else found[0]
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(joined))
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")
    for rows in (32, 31, 27):  # batches of a static size; of two sizes on one rank; of two on all
        history = model.fit(tokens[:rows], labels[:rows], batch_size=8, epochs=1, shuffle=False, verbose=0)
        print(*kinds, rows, [f"{loss:.12g}" for loss in history.history["loss"]])
    print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
