"""A training loop of its own that its links limit: 76,810 weights, little to compute."""

import tensorflow as tf

weights = tf.Variable(tf.zeros([1, 76_810]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.reduce_mean(tf.matmul(x[:, None], weights), axis=0))
    weights.assign_sub(0.5 * tape.gradient(loss, weights))


for batch in tf.data.Dataset.range(32, output_type=tf.float32).batch(8):
    step(batch)
print(sorted(set(weights.numpy()[0].tolist())))  # half the sum of the means of the batches, negative
