"""issue: fit: the data's on_epoch_end reads the weights; data that end within an epoch of steps_per_epoch"""

import warnings

import keras
import numpy as np

warnings.filterwarnings("ignore", "Your input ran out of data")
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(94)
x = np.random.normal(size=(24, 4))
y = np.random.normal(size=(24, 1))


class Hardest(keras.utils.PyDataset):
    order = np.arange(24)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = self.order[8 * index : 8 * index + 8]
        return x[rows], y[rows]

    def on_epoch_end(self):
        kernel, bias = model.get_weights()
        self.order = np.argsort(-((x @ kernel + bias - y) ** 2)[:, 0], kind="stable")


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(Hardest(), epochs=4, shuffle=False, verbose=0)
print("loss", [f"{v:.6g}" for v in history.history["loss"]])
print("weights", *[f"{float(np.sum(w)):.6g}" for w in model.get_weights()])


class InOrder(Hardest):
    order = np.arange(24)

    def on_epoch_end(self):
        pass


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(InOrder(), epochs=4, steps_per_epoch=2, verbose=0)  # every second epoch has one step
print("loss", [f"{v:.6g}" for v in history.history["loss"]])
print("weights", *[f"{float(np.sum(w)):.6g}" for w in model.get_weights()], int(model.optimizer.iterations))
