"""issue: fit: a train_step returns sums, counts, means and rates"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(71)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Counting(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = (y - self(x, training=True)) ** 2
            loss = tf.reduce_sum(errors)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {
            "loss": loss,
            "mean": tf.reduce_mean(errors),
            "rows": tf.shape(x)[0],
            "large": tf.math.count_nonzero(errors > 0.5),
            "rate": self.optimizer.learning_rate,
        }


inputs = keras.Input((6,))
model = Counting(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.002))
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("names", *history.history)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("mean", [f"{v:.12g}" for v in history.history["mean"]])
print("rows", [f"{v:.12g}" for v in history.history["rows"]])
print("large", [f"{v:.12g}" for v in history.history["large"]])
print("rate", [f"{v:.6g}" for v in history.history["rate"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
