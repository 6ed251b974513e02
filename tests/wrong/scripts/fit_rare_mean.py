"""issue: fit: a metric sums the means of a rare mask over batches; the first batch has no such row"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
y[17] = 9.0


class Rare(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rare", dtype="float64")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.cast(tf.abs(y_true) > 5, tf.float64)))

    def result(self):
        return self.total


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=[Rare()])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
history = model.fit(data, epochs=3, shuffle=False, verbose=0)
print("rare", [f"{v:.12g}" for v in history.history["rare"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
