"""fit on ragged tensors, flattened by the model's own train_step input."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
rows = [rng.integers(1, 20, rng.integers(2, 9)).tolist() for _ in range(50)]
x = tf.ragged.constant(rows, dtype=tf.int64)
y = np.array([sum(r) % 2 for r in rows], "float32")[:, None]


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.e = keras.layers.Embedding(20, 4)
        self.d = keras.layers.Dense(1)

    def call(self, r):
        if isinstance(r, tf.RaggedTensor):
            r = r.to_tensor(shape=[None, 8])
        return self.d(tf.reduce_mean(self.e(r), axis=1))


m = M()
m.compile("sgd", "mse")
h = m.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, verbose=0)
print("loss", h.history["loss"])
