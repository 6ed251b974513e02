"""Mixed precision with a LossScaleOptimizer: first steps overflow, and are left out where they are alone."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
keras.mixed_precision.set_global_policy("mixed_float16")
x = np.random.normal(size=(40, 5)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
outputs = keras.layers.Dense(1, dtype="float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="relu"), outputs])
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
mean = keras.metrics.MeanSquaredError()


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        predicted = model(features, training=True)
        loss = optimizer.scale_loss(tf.reduce_mean((predicted - labels) ** 2))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean.update_state(labels, predicted)


for epoch in range(3):
    for features, labels in dataset:
        step(features, labels)
    print("epoch", epoch, round(float(mean.result()), 2))
    mean.reset_state()
