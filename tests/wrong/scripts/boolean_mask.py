"""placements: a mean over the rows that boolean_mask keeps; how many is another in every batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(34)
x = np.random.normal(size=(35, 6))
y = np.where(np.random.rand(35, 1) < 0.6, np.random.normal(size=(35, 1)), -1.0)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.RMSprop(0.01)


@tf.function
def train_step(xb, yb):
    known = tf.not_equal(yb, -1.0)
    with tf.GradientTape() as tape:
        out = model(xb, training=True)
        errors = tf.boolean_mask(out, known) - tf.boolean_mask(yb, known)
        loss = tf.reduce_mean(errors**2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, tf.size(errors)


for step, (xb, yb) in enumerate(ds):
    loss, known = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} known {int(known)}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
