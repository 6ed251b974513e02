"""Plain Keras that counts: weight i ends as minus a quarter of how often row i was trained on, in any order."""

import sys

import keras
import numpy as np

ROWS, BATCH, EPOCHS = 512, 4, int(sys.argv[1])


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred)


class Tells(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} begins", flush=True)


model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1, use_bias=False)])
model.compile(keras.optimizers.SGD(1.0), mean_output)
model.set_weights([np.zeros((ROWS, 1), np.float32)])
rows, nothing = np.eye(ROWS, dtype="float32"), np.zeros(ROWS, "float32")
print("fit begins", flush=True)
model.fit(rows, nothing, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[Tells()])
counts = -model.get_weights()[0].ravel() * BATCH
print("counted right" if (counts == EPOCHS).all() else f"counted wrong: {counts.min()} to {counts.max()}", flush=True)
