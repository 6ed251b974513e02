"""The same training twice, with state that each change of the number of ranks must restore: Adam's moments, metrics.

The second training is as long as the file that the script's argument names is there.
"""

import sys
from pathlib import Path

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(2400, 20)).astype("float32")
y = x.sum(axis=1)


class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        self.model.stop_training = not Path(sys.argv[1]).exists()


def trained(epochs, *callbacks):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(1e-4), "mse", metrics=["mae"])
    given = {"validation_data": (x[:160], y[:160]), "shuffle": False, "verbose": 0, "callbacks": callbacks}
    history = model.fit(x, y, batch_size=16, epochs=epochs, **given)
    return model.get_weights(), {name: np.array(values) for name, values in history.history.items()}


second, after = trained(10_000, Tell())
first, before = trained(len(after["loss"]))
print("epochs:", len(after["loss"]))
print("weights:", max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)))
print("history:", max(float(np.abs(after[name] / before[name] - 1).max()) for name in after))
