"""loops that are left early: by the loss of a step, by a count of steps; a metric and an evaluation after each"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(64, 5)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
mean = keras.metrics.Mean()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
for epoch in range(4):
    mean.reset_state()
    for number, (features, labels) in enumerate(dataset):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - labels) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(loss)
        if loss < 0.3 or number > epoch + 2:
            break
    error = tf.reduce_mean((model(x) - y) ** 2)
    print("epoch", epoch, float(mean.result()), float(error))
for features, labels in dataset.take(1):  # fewer batches than workers
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features) - labels) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print("end", float(tf.reduce_mean((model(x) - y) ** 2)))
