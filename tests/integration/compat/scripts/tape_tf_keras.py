"""tf_keras (Keras 2): optimizer.minimize in an eager loop, then apply_gradients in a tf.function; BatchNorm"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
layers = [tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
model = tf.keras.Sequential([tf.keras.Input((5,)), *layers])
optimizer = tf.keras.optimizers.SGD(0.05)
mean = tf.keras.metrics.Mean()
for features, labels in dataset:
    optimizer.minimize(
        lambda: tf.reduce_mean((model(features, training=True) - labels) ** 2), model.trainable_variables
    )
print("minimized", float(tf.reduce_mean((model(x) - x.sum(1, keepdims=True)) ** 2)))


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean(loss)


for epoch in range(2):
    for features, labels in dataset:
        step(features, labels)
    print("epoch", epoch, float(mean.result()))
    mean.reset_state()
