"""a loss that is a sum over samples, in a compiled step (jit_compile) on a generator's batches; a count returned"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)


def batches():
    for _ in range(6):
        x = np.random.random((9, 5)).astype("float32")
        yield x, x.sum(1, keepdims=True)


model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.005)


@tf.function(jit_compile=True)
def train_step(data):
    x, y = data
    with tf.GradientTape() as tape:
        predicted = model(x)
        loss = tf.reduce_sum((y - predicted) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    near = tf.reduce_sum(tf.cast(tf.abs(y - predicted) < 1.0, tf.float32))
    return {"loss": loss, "near": near, "largest weight": tf.reduce_max(tf.abs(model.trainable_variables[0]))}


for data in batches():
    logs = train_step(data)
    print({name: float(value) for name, value in logs.items()})
