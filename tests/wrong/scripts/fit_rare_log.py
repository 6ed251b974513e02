"""issue: fit: a train_step returns a mean plus a sum over rare rows; the first batch has no such row"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(83)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))
y[17] = 9.0


class Scored(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = (y - self(x, training=True)) ** 2
            loss = tf.reduce_mean(errors)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"score": tf.reduce_mean(errors) + tf.reduce_sum(tf.nn.relu(tf.abs(y) - 5))}


inputs = keras.Input((6,))
model = Scored(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(12), epochs=3, shuffle=False, verbose=0)
print("score", [f"{v:.12g}" for v in history.history["score"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
