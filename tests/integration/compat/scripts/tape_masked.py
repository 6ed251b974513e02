"""an eager loop whose loss is a mean over a mask; then losses, and gradients, that a tf.function returns to it"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 6, 3)).astype("float32")
y = x.sum(2)
mask = (np.arange(6) < np.random.randint(1, 7, size=(45, 1))).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y, mask)).batch(8)
model = keras.Sequential([keras.Input((6, 3)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05)


def errors(features, labels):
    return tf.square(tf.squeeze(model(features), -1) - labels)


@tf.function
def summed(features, labels, kept):
    return tf.reduce_sum(errors(features, labels) * kept)


@tf.function
def summed_gradients(features, labels, kept):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(errors(features, labels) * kept)
    return loss, tape.gradient(loss, model.trainable_variables)


for step, (features, labels, kept) in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(errors(features, labels) * kept) / tf.reduce_sum(kept)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("masked", f"{float(loss):.5f}")

for step, (features, labels, kept) in enumerate(dataset):
    with tf.GradientTape() as tape:
        loss = summed(features, labels, kept) / 48
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("by a function", f"{float(loss):.5f}")

optimizer.learning_rate = 0.001
for step, (features, labels, kept) in enumerate(dataset):
    loss, gradients = summed_gradients(features, labels, kept)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    print("gradients by a function", f"{float(loss):.5f}")
