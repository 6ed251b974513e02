"""issue: fit: a metric averages the means of batches"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(64)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class OfMeans(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="loss_of_means", dtype="float64")
        self.total = self.add_variable((), "zeros", name="total")
        self.batches = self.add_variable((), "zeros", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))
        self.batches.assign_add(1.0)

    def result(self):
        return self.total / self.batches


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=[OfMeans()])
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("loss_of_means", [f"{v:.12g}" for v in history.history["loss_of_means"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
