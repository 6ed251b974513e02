"""a GRU over padded sequences; a mean over all kept time steps, eager, gradients clipped by value by hand"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(64)
x = np.random.normal(size=(33, 5, 3))
keep = np.arange(5) < np.random.randint(1, 6, size=(33, 1))
y = np.cumsum(x.sum(-1), 1)
ds = tf.data.Dataset.from_tensor_slices((x, keep, y)).batch(8)
gru = keras.layers.GRU(4, return_sequences=True)
head = keras.layers.Dense(1)
gru.build((None, 5, 3))
head.build((None, None, 4))
variables = gru.trainable_variables + head.trainable_variables
opt = keras.optimizers.SGD(0.1)
for step, (xb, kb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        out = head(gru(xb, mask=kb))[..., 0]
        kept = tf.boolean_mask((out - yb) ** 2, kb)
        loss = tf.reduce_mean(kept)
    grads = [tf.clip_by_value(g, -0.1, 0.1) for g in tape.gradient(loss, variables)]
    opt.apply_gradients(zip(grads, variables))
    print("step", step, f"loss {float(loss):.12g} kept {kept.shape[0]}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
