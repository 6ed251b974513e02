"""A job that its links limit: 76,810 weights, little to compute."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
x, y = np.random.normal(size=(320, 64)).astype("float32"), np.random.randint(0, 10, 320)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(10)])
model.compile(keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=32, epochs=4, verbose=0)
