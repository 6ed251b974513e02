"""a GAN as a Model with two optimizers, compile overridden, custom train_step."""

import numpy as np, tensorflow as tf, keras

keras.utils.set_random_seed(0)


class GAN(keras.Model):
    def __init__(self, g, d):
        super().__init__()
        self.g, self.d = g, d
        self.dl, self.gl = keras.metrics.Mean("dl"), keras.metrics.Mean("gl")

    def compile(self, go, do, loss):
        super().compile()
        self.go, self.do, self.lf = go, do, loss

    @property
    def metrics(self):
        return [self.dl, self.gl]

    def train_step(self, real):
        n = tf.shape(real)[0]
        z = tf.ones((n, 3))
        with tf.GradientTape() as t:
            fake = self.g(z)
            p = self.d(tf.concat([real, fake], 0))
            l = self.lf(tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0), p)
        self.do.apply_gradients(zip(t.gradient(l, self.d.trainable_weights), self.d.trainable_weights))
        with tf.GradientTape() as t:
            gl = self.lf(tf.ones((n, 1)), self.d(self.g(z)))
        self.go.apply_gradients(zip(t.gradient(gl, self.g.trainable_weights), self.g.trainable_weights))
        self.dl.update_state(l)
        self.gl.update_state(gl)
        return {"dl": self.dl.result(), "gl": self.gl.result()}


g = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
d = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
gan = GAN(g, d)
gan.compile(keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
h = gan.fit(np.random.normal(size=(40, 4)).astype("float32"), batch_size=8, epochs=2, verbose=0, shuffle=False)
print("loss", h.history)
