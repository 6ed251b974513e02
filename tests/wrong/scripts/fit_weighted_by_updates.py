"""issue: fit: the number of updates is the weight of a term that is a sum"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(74)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Growing(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            term = tf.cast(self.optimizer.iterations, "float64") * tf.reduce_sum(predicted**2)
            loss = tf.reduce_mean((y - predicted) ** 2) + 1e-3 * term
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": loss}


inputs = keras.Input((6,))
model = Growing(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
