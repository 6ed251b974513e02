"""issue: fit: batches are a NamedTuple of the script, by whose class the model tells what it gets"""

import typing

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)


class Pair(typing.NamedTuple):
    x: typing.Any
    shift: typing.Any


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, batch):
        if isinstance(batch, Pair):
            return self.dense(batch.x) + 0.1 * batch.shift
        return self.dense(batch[0])


x, shift = np.random.normal(size=(32, 3)), np.random.normal(size=(32, 1))
data = tf.data.Dataset.from_tensor_slices((Pair(x, shift), x.sum(1, keepdims=True))).batch(8)
model = Net()
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(data, epochs=2, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
