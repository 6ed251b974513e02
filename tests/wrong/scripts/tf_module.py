"""a tf.Module with its own Adam, a class of its own for training, and no Keras at all"""

import numpy as np
import tensorflow as tf


class Net(tf.Module):
    def __init__(self, sizes):
        super().__init__()
        rng = np.random.default_rng(85)
        self.layers = [
            (tf.Variable(rng.normal(size=(a, b)) * 0.4), tf.Variable(np.zeros(b))) for a, b in zip(sizes, sizes[1:])
        ]

    def __call__(self, x):
        for w, b in self.layers[:-1]:
            x = tf.nn.leaky_relu(x @ w + b)
        w, b = self.layers[-1]
        return x @ w + b


class Adam(tf.Module):
    def __init__(self, variables):
        super().__init__()
        self.m = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
        self.v = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
        self.t = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    def step(self, grads, variables, lr=0.02):
        self.t.assign_add(1.0)
        for g, m, v, p in zip(grads, self.m, self.v, variables):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.99 * v + 0.01 * g * g)
            p.assign_sub(lr * (m / (1 - 0.9**self.t)) / (tf.sqrt(v / (1 - 0.99**self.t)) + 1e-8))


class Trainer:
    def __init__(self):
        self.net = Net([4, 6, 1])
        self.variables = self.net.trainable_variables
        self.adam = Adam(self.variables)

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self.net(x) - y))
        self.adam.step(tape.gradient(loss, self.variables), self.variables)
        return loss


rng = np.random.default_rng(86)
x, y = rng.normal(size=(33, 4)), rng.normal(size=(33, 1))
trainer = Trainer()
for step, batch in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    print("step", step, "loss", f"{float(trainer.step(*batch)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in trainer.variables])
