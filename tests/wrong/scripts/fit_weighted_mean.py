"""issue: fit: a train_step weighs a Mean by a number, and a layer counts steps in a float"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Count(keras.layers.Layer):
    def build(self, shape):
        self.steps = self.add_weight(shape=(), dtype="float32", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1.0)
        return x


class Weighing(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        tracker.update_state(loss, sample_weight=5)
        tracker.update_state(2 * loss, sample_weight=0.5)
        return {"tracked": tracker.result()}

    @property
    def metrics(self):
        return [tracker]


tracker = keras.metrics.Mean(name="tracked", dtype="float64")
inputs = keras.Input((6,))
count = Count()
model = Weighing(inputs, keras.layers.Dense(1)(count(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=12, epochs=7, shuffle=False, verbose=0)
print("steps", float(count.steps), "total", f"{float(tracker.total):.12g}", float(tracker.count))
print("tracked", [f"{v:.12g}" for v in history.history["tracked"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
