"""issue: fit: a train_step has the size of a batch as a constant"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(75)
BATCH = 12
x = np.random.normal(size=(24, 6))


class Denoising(keras.Model):
    def train_step(self, data):
        noise = tf.random.stateless_uniform((BATCH, 1), [1, 2], dtype="float64")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((noise - self(data + noise, training=True)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"noise_loss": loss}


inputs = keras.Input((6,))
model = Denoising(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer=keras.optimizers.SGD(0.05))
history = model.fit(x, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["noise_loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_weights])
