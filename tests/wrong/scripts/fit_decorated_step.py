"""issue: fit: a train_step that is a tf.function, compiled by XLA, with a branch on a tensor"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(76)
x = np.random.normal(size=(26, 6))
y = np.random.normal(size=(26, 1))


class Decorated(keras.Model):
    @tf.function(jit_compile=True)
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if self.optimizer.iterations > 4:
            loss = 2 * loss
        return {"error": loss}


inputs = keras.Input((6,))
model = Decorated(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=12, epochs=3, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
