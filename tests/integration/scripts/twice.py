"""The same training twice, with state that a restart must restore: Adam's moments, Dropout's random numbers."""

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(1200, 20)).astype("float32")
y = x.sum(axis=1)


def trained(name):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    tell = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: print(name, epoch, flush=True))
    history = model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=[tell])
    return model.get_weights(), np.array(history.history["loss"])


(first, before), (second, after) = trained("first"), trained("second")
print("furthest apart:", max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)))
print("losses:", float(np.abs(after / before - 1).max()))
