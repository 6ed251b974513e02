"""PCGrad: the gradients of two tasks are projected where they conflict, then one optimizer applies their sum"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(105)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 2))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])
opt = keras.optimizers.Adam(0.02)


def flat(grads):
    return tf.concat([tf.reshape(g, [-1]) for g in grads], 0)


for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.reduce_mean((model(xb) - yb) ** 2, axis=0)
        first, second = losses[0], -0.5 * losses[1] + tf.reduce_mean(tf.abs(model(xb)))
    a, b = (tape.gradient(v, model.trainable_variables) for v in (first, second))
    dot = float(tf.tensordot(flat(a), flat(b), 1))
    if dot < 0:
        b = [q - dot / float(tf.reduce_sum(flat(a) ** 2)) * p for p, q in zip(a, b)]
    opt.apply_gradients([(p + q, v) for p, q, v in zip(a, b, model.trainable_variables)])
    print("step", step, f"dot {dot:.12g} losses {float(first):.12g} {float(second):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
