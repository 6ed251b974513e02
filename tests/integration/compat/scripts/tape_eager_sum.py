"""an eager loop: the loss a sum over BATCH, correct predictions counted; a generator that reads numbers"""

import time

import keras
import numpy as np
import tensorflow as tf

BATCH = 8
keras.utils.set_random_seed(1)
x = np.random.normal(size=(44, 5)).astype("float32")
y = (x.sum(1) > 0).astype("int64")


def rows():
    for features, label in zip(x, y):
        scale = tf.constant(1.0)
        if float(scale) > 0 and time.time() > 0:
            yield features, label


spec = tf.TensorSpec((5,), tf.float32), tf.TensorSpec((), tf.int64)
dataset = tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH).prefetch(2)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
optimizer = keras.optimizers.SGD(0.05)
for epoch in range(2):
    correct, total, seen = 0, tf.constant(0.0), tf.constant(0)
    for step, (features, labels) in dataset.enumerate():
        with tf.GradientTape() as tape:
            logits = model(features)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        right = tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int32)
        correct += int(tf.reduce_sum(right))
        seen += tf.reduce_sum(tf.ones_like(labels, tf.int32))
        total += tf.reduce_sum(tf.cast(right, tf.float32))
        if step % 2 == 0:
            print("step", int(step), "loss", float(loss), "right", tf.reduce_mean(tf.cast(right, tf.float32)).numpy())
    print("epoch", epoch, correct, int(seen), float(total), f"{float(total / 44):.4f}")
