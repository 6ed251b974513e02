"""fit on a scipy sparse matrix."""

import numpy as np, keras, scipy.sparse as sp

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
d = (rng.random((50, 12)) < 0.2).astype("float32") * rng.normal(size=(50, 12)).astype("float32")
y = d.sum(1, keepdims=True)
m = keras.Sequential([keras.Input((12,), sparse=True), keras.layers.Dense(4), keras.layers.Dense(1)])
m.compile("sgd", "mse")
h = m.fit(sp.csr_matrix(d), y, epochs=2, batch_size=8, shuffle=False, verbose=0)
print("loss", h.history["loss"])
