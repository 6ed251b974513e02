"""eager steps on arrays sliced by hand: in a function that returns loss and predictions, inline, on all rows at once"""

import keras
import numpy as np
import tensorflow as tf

BATCH = 8
keras.utils.set_random_seed(1)
x = np.random.normal(size=(45, 5))
y = (x.sum(1) > 0).astype("float32")[:, np.newaxis]
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
accuracy = keras.metrics.BinaryAccuracy()
seen = keras.metrics.Sum()


def train_step(features, labels):
    with tf.GradientTape() as tape:
        logits = model(features)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(labels, tf.sigmoid(logits))
    return loss, logits


for epoch in range(2):
    order = np.random.permutation(len(x))
    for i in range(0, len(x), BATCH):
        rows = order[i : i + BATCH]
        loss, logits = train_step(x[rows], y[rows])
        seen.update_state(np.ones(len(rows)))
        print("step", i, f"{float(loss):.5f}", logits.shape, np.abs(logits.numpy()).sum().round(4))
    print("epoch", epoch, f"{float(accuracy.result()):.4f} {float(seen.result()):.1f}")

batches = [(x[i : i + BATCH].astype("float32"), y[i : i + BATCH]) for i in range(0, 40, BATCH)]
for features, labels in batches:
    with tf.GradientTape() as tape:
        error = model(features) - labels
        loss = tf.reduce_sum(error**2) / BATCH
        print(f"sum {loss.numpy():.5f}")
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

X, Y = tf.constant(x, tf.float32), tf.constant(y)
a, b = tf.Variable(tf.zeros([5, 1])), tf.Variable(0.0)
descent = keras.optimizers.SGD(0.01)
for step in range(20):
    with tf.GradientTape() as tape:
        predicted = tf.matmul(X, a) + b
        cost = tf.reduce_sum(tf.square(predicted - Y))
    grads = tape.gradient(cost, [a, b])
    descent.apply_gradients([(grads[0], a), (grads[1], b)])
    if (step + 1) % 10 == 0:
        print(step, f"{float(cost):.5f}", f"{tf.reduce_mean(tf.abs(predicted - Y)):.5f}")
print(a.numpy().round(5).tolist(), b.numpy().round(5))
