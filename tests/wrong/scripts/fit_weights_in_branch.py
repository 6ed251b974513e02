"""issue: fit: a mean, and at each fourth step a penalty on positive weights, in a branch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(40, 4))
y = x @ np.random.normal(size=(4, 1))


class Fourth(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean((y - predicted) ** 2)
            w = self.trainable_variables[0] + 0.0
            fourth = tf.equal((self.optimizer.iterations + 1) % 4, 0)
            loss += tf.cond(
                fourth, lambda: 0.01 * tf.reduce_sum(tf.boolean_mask(w, w > 0) ** 2), lambda: tf.zeros([], "float64")
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": loss}


inputs = keras.Input((4,))
model = Fourth(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
