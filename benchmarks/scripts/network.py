"""The two networks of keras_fit.py in plain TensorFlow: Keras 3 models do not work under tf.distribute.

A tf.Module with its own momentum: there is no Keras in the step, which is the least work of a hand-written loop.
"""

import math

import tensorflow as tf

SHAPES = {
    "cnn": [(5, 5, 1, 8), (8,), (5, 5, 8, 16), (16,), (256, 64), (64,), (64, 10), (10,)],
    "mlp": [(784, 1024), (1024,), (1024, 1024), (1024,), (1024, 10), (10,)],
}


class Network(tf.Module):
    """Create it under the strategy's scope."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kind = name
        self.weights = [tf.Variable(glorot(shape, seed)) for seed, shape in enumerate(SHAPES[name])]
        self.velocities = [tf.Variable(tf.zeros(shape), trainable=False) for shape in SHAPES[name]]

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean loss and accuracy of a batch."""
        logits = cnn(self.weights, x) if self.kind == "cnn" else mlp(self.weights, x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        right = tf.equal(tf.argmax(logits, axis=1), y)
        return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(right, tf.float32))


def momentum(weight: tf.Variable, velocity: tf.Variable, gradient: tf.Tensor, rate: float, mu: float) -> None:
    """Keras's SGD with momentum as one op that runs where the variable is: only the gradient travels to a server."""
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=weight.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=mu, use_locking=False
    )


def glorot(shape: tuple[int, ...], seed: int) -> tf.Tensor:
    if len(shape) == 1:
        return tf.zeros(shape)
    fan = math.prod(shape[:-2]) * (shape[-2] + shape[-1])
    limit = math.sqrt(6 / fan)
    return tf.random.stateless_uniform(shape, [0, seed], -limit, limit)


def cnn(weights: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for kernel, bias in (weights[0:2], weights[2:4]):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return dense(weights[4:], tf.reshape(x, [-1, 256]))


def mlp(weights: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    return dense(weights, tf.reshape(x, [-1, 784]))


def dense(weights: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
    return tf.nn.bias_add(tf.matmul(x, weights[-2]), weights[-1])
