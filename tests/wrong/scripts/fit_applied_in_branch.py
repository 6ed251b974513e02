"""a train_step that applies its gradients, clipped one by one, in the branches of tf.cond"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(13)
x = np.random.normal(size=(40, 6))
y = np.random.normal(size=(40, 1))


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.layers.Dense(8, activation="tanh")
        self.b = keras.layers.Dense(1)

    def call(self, x):
        return self.b(self.a(x))

    def train_step(self, data):
        xb, yb = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(xb, training=True) - yb) ** 2)
        g = tape.gradient(loss, self.trainable_variables)
        vs = self.trainable_variables

        def clipped():
            self.optimizer.apply_gradients(zip([tf.clip_by_norm(v, 0.1) for v in g], vs))
            return 0

        def plain():
            self.optimizer.apply_gradients(zip(g, vs))
            return 0

        tf.cond(self.optimizer.iterations > 2, clipped, plain)
        return {"error": loss}


m = M()
m.compile(optimizer=keras.optimizers.SGD(0.1))
h = m.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print("errors", [f"{v:.12g}" for v in h.history["error"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in m.trainable_variables])
