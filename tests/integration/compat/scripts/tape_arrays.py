"""a tf.function step on hand-sliced arrays, then on a feed of random rows; it returns loss and predictions"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.RMSprop(0.01)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = cross_entropy(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss, logits


for start in range(0, 45, 10):
    loss, logits = step(x[start : start + 10], y[start : start + 10])
    right = np.mean(np.argmax(logits.numpy(), axis=1) == y[start : start + 10])
    print("rows", start, "loss", float(loss), "accuracy", right, logits.shape)
for _ in range(4):
    rows = np.random.choice(45, 8)
    loss, _ = step(tf.constant(x[rows]), tf.constant(y[rows]))
    print("random rows", rows[:3], float(loss))
