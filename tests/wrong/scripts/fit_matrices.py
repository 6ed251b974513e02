"""issue: fit: a layer that solves, decomposes and measures a matrix for each row, with gradients taken by the script"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
x, y = rng.normal(size=(26, 9)), rng.normal(size=(26, 1))


class Matrices(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.entries = keras.layers.Dense(9)

    def call(self, x):
        given = tf.reshape(self.entries(x), [-1, 3, 3])
        diagonal = 1 + tf.square(tf.linalg.diag_part(given))
        lower = tf.linalg.set_diag(tf.linalg.band_part(given, -1, 0) * 0.3, diagonal)
        right = tf.reshape(x, [-1, 3, 3])
        solved = tf.linalg.triangular_solve(lower, right[..., :2])
        both = tf.linalg.solve(lower + tf.linalg.diag(diagonal), right)
        symmetric = tf.matmul(lower, lower, transpose_b=True)
        values, vectors = tf.linalg.eigh(symmetric)
        q, r = tf.linalg.qr(right + given)
        spectrum = tf.abs(tf.signal.rfft2d(given))
        crossed = tf.linalg.cross(given[:, 0], given[:, 1])
        lengths = tf.argmax(x, 1) % 4
        turned = tf.signal.irfft2d(tf.signal.rfft2d(tf.reverse_sequence(given, lengths, 1)) * 0.5, [3, 3])
        parts = [
            tf.linalg.logdet(symmetric)[:, None],
            tf.linalg.det(given)[:, None],
            tf.linalg.slogdet(both)[1][:, None],
            tf.linalg.svd(both, compute_uv=False),
            values,
            tf.square(vectors[..., 0]),
            tf.linalg.diag_part(tf.abs(r)),
            tf.abs(q[:, 0]),
            crossed,
            *(tf.reduce_sum(tf.square(each), 2) for each in (solved, both, spectrum, turned)),
        ]
        return tf.math.tanh(tf.concat(parts, 1))


class Stepped(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


inputs = keras.Input((9,))
model = Stepped(inputs, keras.layers.Dense(1)(Matrices()(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
history = model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0)
print("loss", [f"{v:.12g}" for v in history.history["loss"]])
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
