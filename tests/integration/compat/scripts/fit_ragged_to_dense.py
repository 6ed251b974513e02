"""fit on a tf.data pipeline of ragged tensors."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
rows = [rng.integers(1, 20, rng.integers(2, 9)).tolist() for _ in range(50)]
x = tf.ragged.constant(rows, dtype=tf.int64)
y = np.array([sum(r) % 2 for r in rows], "float32")[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).map(lambda a, b: (a.to_tensor(shape=[None, 8]), b))
m = keras.Sequential([keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
m.compile("sgd", "mse")
h = m.fit(ds, epochs=2, verbose=0)
print("loss", h.history["loss"])
