"""issue: fit: a train_step clips gradients by their norm, which exceeds the limit from the second batch on"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(32)
x = np.random.normal(size=(36, 5))
x[12:] *= 4
y = x.sum(1, keepdims=True)
y[:12] *= 0.01


class Clipped(keras.Model):
    def train_step(self, data):
        rows, targets = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=targets, y_pred=self(rows, training=True))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 1.0)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": norm}


inputs = keras.Input((5,))
model = Clipped(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
print("logs", {name: [f"{v:.12g}" for v in values] for name, values in sorted(history.history.items())})
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
