"""issue: fit: a train_step returns a metric's result under another name"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(65)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Renaming(keras.Model):
    def __init__(self, *args):
        super().__init__(*args)
        self.tracker = keras.metrics.Mean(name="total_loss", dtype="float64")
        self.error = keras.metrics.MeanAbsoluteError(name="error", dtype="float64")

    @property
    def metrics(self):
        return [self.tracker, self.error]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean((y - predicted) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        self.error.update_state(y, predicted)
        return {"loss": self.tracker.result(), "mae": self.error.result()}


inputs = keras.Input((6,))
model = Renaming(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("mae", [f"{v:.12g}" for v in history.history["mae"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
