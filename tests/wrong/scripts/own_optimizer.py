"""issue: an optimizer of the script's own, with momentum buffers, that assigns the weights"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(8)


class Momentum:
    def __init__(self, variables, rate=0.05, beta=0.9):
        self.rate, self.beta = rate, beta
        self.buffers = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def apply(self, grads, variables):
        for g, m, v in zip(grads, self.buffers, variables):
            m.assign(self.beta * m + g)
            v.assign(v - self.rate * m)


x = np.random.normal(size=(35, 6))
y = np.sin(x.sum(1, keepdims=True))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
optimizer = Momentum(model.trainable_variables)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.mean_squared_error(yb, model(xb)))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


for step, (xb, yb) in enumerate(dataset):
    print("step", step, "loss", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
print("buffers", *[f"{float(tf.norm(m)):.12g}" for m in optimizer.buffers])
