"""A plain Keras script that trains until it is stopped, then ends as its arguments tell."""

import sys

import keras
import numpy as np

epochs, ending = int(sys.argv[1]), sys.argv[2]
x = np.random.default_rng(0).normal(size=(640, 10)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(2, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class Raises(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if ending == "callback" and epoch == 1:
            raise RuntimeError("from the callback")


if ending != "nothing":
    model.fit(x, y, epochs=epochs, verbose=2, callbacks=[Raises()])
if ending == "raise":
    raise ValueError("from the script")
if ending == "exit":
    sys.exit(3)
print("the script has ended")
