"""issue: a mean loss and a sum loss on one persistent tape; both gradients are taken, then both applied"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(17)
x = np.random.normal(size=(35, 6))
y = np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
body = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh")])
head_a = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
head_b = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
opt_a, opt_b = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape(persistent=True) as tape:
        z = body(xb)
        loss_a = tf.reduce_mean((head_a(z) - yb) ** 2)
        loss_b = tf.reduce_sum(tf.abs(head_b(z) - yb))
    variables_a = body.trainable_variables + head_a.trainable_variables
    grads_a = tape.gradient(loss_a, variables_a)
    grads_b = tape.gradient(loss_b, head_b.trainable_variables)
    del tape
    opt_a.apply_gradients(zip(grads_a, variables_a))
    opt_b.apply_gradients(zip(grads_b, head_b.trainable_variables))
    print("step", step, f"a {float(loss_a):.12g} b {float(loss_b):.12g}")
variables = variables_a + head_b.trainable_variables
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
