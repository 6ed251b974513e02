"""Two epochs of three steps, with validation."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(96, 8).astype("float32")
y = x.sum(axis=1)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=32, epochs=2, validation_data=(x, y), verbose=0)
