"""an absl.flags program: app.run, flags with defaults, logging; the step a method of a tf.Module"""

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 2, "how often")
flags.DEFINE_float("rate", 0.1, "learning rate")


class Line(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([5, 1]))
        self.optimizer = tf.keras.optimizers.SGD(FLAGS.rate)

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.w - y) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.w), self.w)])
        return loss


def main(argv):
    del argv
    tf.random.set_seed(1)
    rng = np.random.RandomState(1)
    x = rng.normal(size=(44, 5)).astype("float32")
    line = Line()
    for epoch in range(FLAGS.epochs):
        for start in range(0, 44, 8):
            loss = line.step(x[start : start + 8], x[start : start + 8].sum(1, keepdims=True))
        logging.info("epoch %d", epoch)
        print("epoch", epoch, loss.numpy(), line.w.numpy().ravel())


if __name__ == "__main__":
    app.run(main)
