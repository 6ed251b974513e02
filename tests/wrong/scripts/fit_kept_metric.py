"""issue: fit: a metric counts over the whole run, its reset_state does nothing, and it has counted before"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(65)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Seen(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="seen", dtype="float64")
        self.rows = self.add_variable((), "zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign_add(tf.cast(tf.shape(y_true)[0], self.dtype))

    def result(self):
        return self.rows

    def reset_state(self):
        pass


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=[Seen()])
model.evaluate(x, y, batch_size=13, verbose=0)
for _ in range(2):
    history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    print("loss", [f"{v:.12g}" for v in history.history["loss"]])
    print("seen", history.history["seen"])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
