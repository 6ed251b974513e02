"""MMD between source and target rows with an RBF kernel whose width is the batch's mean distance"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(99)
a, b = np.random.normal(size=(35, 3)), np.random.normal(0.5, 2.0, size=(35, 3))
ds = tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(a), tf.data.Dataset.from_tensor_slices(b))).batch(8)
layer = keras.layers.Dense(4, activation="tanh")
layer.build((None, 3))
opt = keras.optimizers.SGD(0.5)


def distances(p, q):
    return tf.reduce_sum(tf.square(tf.expand_dims(p, 1) - tf.expand_dims(q, 0)), axis=2)


@tf.function
def train_step(ab, bb):
    with tf.GradientTape() as tape:
        p, q = layer(ab), layer(bb)
        width = tf.stop_gradient(tf.reduce_mean(distances(p, q)))
        pp, qq, pq = (tf.reduce_mean(tf.exp(-d / width)) for d in (distances(p, p), distances(q, q), distances(p, q)))
        loss = pp + qq - 2 * pq
    opt.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))
    return loss, width


for step, (ab, bb) in enumerate(ds):
    loss, width = train_step(ab, bb)
    print("step", step, f"mmd {float(loss):.12g} width {float(width):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in layer.trainable_variables])
