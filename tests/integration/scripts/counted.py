"""Two epochs of many small steps. A metric counts the rows, and the script prints its value after each epoch."""

import keras
import numpy as np


class Rows(keras.metrics.Metric):
    """The number of rows of an epoch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return keras.ops.convert_to_tensor(self.count)


keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(3_000, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy", metrics=["accuracy", Rows(name="rows")])
begins = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: print(f"begins {epoch}", flush=True))
history = model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=[begins]).history
print("rows", *(int(rows) for rows in history["rows"]))
print("accuracy", history["accuracy"][-1])
