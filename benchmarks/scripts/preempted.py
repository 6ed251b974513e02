"""Keras with dropout and shuffling; prints a digest of weights and history, which a resumed run must print, too."""

import hashlib
import sys

import keras
import numpy as np

ROWS, BATCH, EPOCHS = 1024, 4, int(sys.argv[1])


class Tells(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} begins", flush=True)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
y = x.sum(axis=1)
layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((8,)), *layers])
model.compile(keras.optimizers.Adam(0.001), "mse", metrics=["mae"])
options = {"batch_size": BATCH, "verbose": 0, "validation_data": (x[:64], y[:64])}
print("fit begins", flush=True)
first = model.fit(x, y, epochs=1, callbacks=[Tells()], **options)
second = model.fit(x, y, epochs=EPOCHS, callbacks=[Tells()], **options)
told = [first.history, second.history, [w.tobytes() for w in model.get_weights()]]
print("digest", hashlib.sha256(repr(told).encode()).hexdigest(), flush=True)
