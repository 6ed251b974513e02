"""a mean over a mask plus a penalty on the weights, eager, Keras optimizer with clipnorm"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(46)
x = np.random.normal(size=(35, 5, 3))
keep = np.random.rand(35, 5) < 0.5
ds = tf.data.Dataset.from_tensor_slices({"x": x, "y": x.sum(-1), "keep": keep.astype("float64")}).batch(8)
dense = keras.layers.Dense(1)
dense.build((None, 3))
opt = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
for step, batch in enumerate(ds):
    with tf.GradientTape() as tape:
        error = (tf.squeeze(dense(batch["x"]), -1) - batch["y"]) ** 2 * batch["keep"]
        loss = tf.reduce_sum(error) / (tf.reduce_sum(batch["keep"]) + 1e-8) + 0.01 * tf.reduce_sum(dense.kernel**2)
    opt.apply_gradients(zip(tape.gradient(loss, dense.trainable_variables), dense.trainable_variables))
    print("step", step, f"loss {float(loss):.12g} kept {int(tf.reduce_sum(batch['keep']))}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in dense.trainable_variables])
