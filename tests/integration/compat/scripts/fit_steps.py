"""train_step and test_step of its own, metrics, add_loss, gradient accumulation, an exponential average"""

import keras
import numpy as np
import tensorflow as tf


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        hidden = self.hidden(x)
        self.add_loss(1e-3 * tf.reduce_mean(hidden**2))
        return self.out(hidden)

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.seen.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.seen.result()}

    def test_step(self, data):
        x, y = data
        self.seen.update_state(self.compute_loss(x, y, self(x, training=False)), sample_weight=tf.shape(x)[0])
        return {"loss": self.seen.result()}


keras.utils.set_random_seed(1)
x = np.random.normal(size=(48, 5)).astype("float32")
y = x.sum(1, keepdims=True)
model = Net()
model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9), "mse")
history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, validation_data=(x[:16], y[:16]))
print("loss", history.history["loss"], history.history["val_loss"])
