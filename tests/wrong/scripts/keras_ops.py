"""keras.ops instead of tf: a softmax over the batch axis weighs the rows, keras.ops.sum reduces"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(117)
x, y = np.random.normal(size=(35, 4)), np.random.normal(size=(35, 1))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="silu"), keras.layers.Dense(1)])
attention = keras.layers.Dense(1)
attention.build((None, 4))
variables = model.trainable_variables + attention.trainable_variables
opt = keras.optimizers.Adam(0.02)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        weight = ops.softmax(attention(xb), axis=0)
        pooled = ops.sum(weight * model(xb), axis=0)
        loss = ops.sum(ops.square(pooled - ops.mean(yb, axis=0))) + ops.sum(weight * ops.log(weight))
    grads = tape.gradient(loss, variables)
    opt.apply(grads, variables)
    return loss, ops.max(weight)


for step, (xb, yb) in enumerate(ds):
    loss, largest = train_step(xb, yb)
    print("step", step, f"loss {float(loss):.12g} largest weight {float(largest):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
