"""issue: fit: the most steps of an epoch by Keras's configuration"""

import warnings

import keras
import numpy as np

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(96)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))

keras.config.set_max_steps_per_epoch(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Keras says that it limits the steps
    history = model.fit(x, y, validation_data=(x, y), **options)
print("loss", [f"{v:.6g}" for values in history.history.values() for v in values], int(model.optimizer.iterations))
keras.config.set_max_steps_per_epoch(None)
