"""issue: fit: Keras's Dice over a whole batch, with a first batch that has no foreground, and as a metric"""

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(2)
x = np.random.random(size=(32, 6, 6, 1))
y = (x > 0.8).astype("float64")
y[:8] = 0
y[12:16] *= np.random.random(size=(4, 6, 6, 1)) < 0.1


def trained(loss, metrics=(), labels=y):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Conv2D(2, 3, padding="same"), keras.layers.Conv2D(1, 1, activation="sigmoid")]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    model.compile("sgd", loss, metrics=list(metrics))
    history = model.fit(x, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    print({name: [f"{value:.10g}" for value in values] for name, values in history.items()})
    print("weights", *[f"{float(np.sum(w)):.10g} {float(np.linalg.norm(w)):.10g}" for w in model.get_weights()])


trained(keras.losses.Dice())
trained("binary_crossentropy", [keras.losses.dice], np.roll(y, 8, axis=0))
keras.backend.set_floatx("float32")
