"""issue: fit: noise of Keras's global generator, which a train_step adds to the weights"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(79)
x = np.random.normal(size=(26, 4))
y = np.random.normal(size=(26, 1))


class Langevin(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for variable in self.trainable_variables:
            variable.assign_add(0.05 * keras.random.normal(variable.shape))
        return {"error": loss}


inputs = keras.Input((4,))
model = Langevin(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("error", [f"{v:.12g}" for v in history.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
