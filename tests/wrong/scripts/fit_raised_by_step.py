"""issue: fit: a step raises the weight of a sum beside a mean, which begins at 0"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(77)
x = np.random.normal(size=(30, 4))
y = np.random.normal(size=(30, 1))


class Raised(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=None):
        return self.layer(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean(ops.square(y - y_pred)) + self.beta * ops.sum(ops.abs(y_pred))
        self.beta.assign(ops.minimum(1.0, self.beta + 0.02))
        return loss


model = Raised()
model(x[:1])
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
