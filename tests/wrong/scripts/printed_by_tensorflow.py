"""tf.print inside the function and outside, f-strings and str() of tensors"""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(80)
x, y = np.random.normal(size=(19, 3)), np.random.normal(size=(19, 1))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.1)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        errors = tf.abs(model(xb) - yb)[:, 0]
        loss = tf.reduce_sum(errors)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    tf.print("rows", tf.shape(xb)[0], "worst", tf.reduce_max(errors), output_stream=sys.stdout)
    return loss, errors


step = 0
for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(4):
    loss, errors = train_step(xb, yb)
    tf.print("step", step, "loss", loss, output_stream=sys.stdout)
    print(f"errors {errors} of shape {errors.shape}", str(tf.round(errors[:2] * 1e6)), f"{loss:.9f}")
    step += 1
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
