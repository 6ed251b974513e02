"""issue: fit: gradients are computed in a branch, of a mean and a sum over the rows of a rare value"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(40, 4))
y = x @ np.random.normal(size=(4, 1))
y[[21, 30]] = 1e9


class Branch(keras.Model):
    def train_step(self, data):
        x, y = data

        def gradients(weight):
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                rare = tf.cast(y > 1e8, predicted.dtype)
                loss = tf.reduce_mean(((1 - rare) * y - predicted) ** 2)
                loss += weight * tf.reduce_sum(rare * predicted**2)
            return [loss, *tape.gradient(loss, self.trainable_variables)]

        even = tf.equal(self.optimizer.iterations % 2, 0)
        loss, *found = tf.cond(even, lambda: gradients(0.05), lambda: gradients(0.1))
        self.optimizer.apply(found, self.trainable_variables)
        return {"error": loss}


inputs = keras.Input((4,))
model = Branch(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=1, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
