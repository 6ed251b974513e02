"""issue: fit: Keras's Dice of each row"""

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(2)
x = np.random.random(size=(32, 6, 6, 1))
layers = [keras.layers.Conv2D(2, 3, padding="same"), keras.layers.Conv2D(1, 1, activation="sigmoid")]
model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
model.compile("sgd", keras.losses.Dice(axis=(1, 2, 3)))
history = model.fit(x, (x > 0.8).astype("float64"), batch_size=8, epochs=2, shuffle=False, verbose=0).history
print([f"{loss:.10g}" for loss in history["loss"]])
print("weights", *[f"{float(np.sum(w)):.10g} {float(np.linalg.norm(w)):.10g}" for w in model.get_weights()])
keras.backend.set_floatx("float32")
