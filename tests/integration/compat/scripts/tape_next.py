"""`next(iterator)` in a loop of steps; a learning rate that the loop lowers; an evaluation loop in NumPy"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5)).astype("float32")
y = x.sum(1, keepdims=True)
batches = iter(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8))
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
history = []
for step in range(9):
    features, labels = next(batches)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(labels - model(features, training=True)))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    history.append(loss.numpy())
    if step % 3 == 2:
        optimizer.learning_rate = optimizer.learning_rate * 0.5
        errors = [np.abs(model(f).numpy() - t.numpy()).sum() for f, t in test]
        print("step", step, "loss", float(loss), "rate", float(optimizer.learning_rate), "error", sum(errors) / 45)
print("losses", [round(float(v), 5) for v in history])
