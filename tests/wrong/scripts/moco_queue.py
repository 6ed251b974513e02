"""issue: a MoCo queue is the step's first argument, the batch its second; the step returns the next queue"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(23)
x = np.random.normal(size=(40, 6))
queue = tf.math.l2_normalize(tf.constant(np.random.normal(size=(16, 4))), 1)
encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
momentum_encoder = keras.models.clone_model(encoder)
momentum_encoder.set_weights(encoder.get_weights())
opt = keras.optimizers.SGD(0.1)


@tf.function
def train_step(queue, xb):
    keys = tf.math.l2_normalize(momentum_encoder(xb[:, ::-1]), 1)
    with tf.GradientTape() as tape:
        queries = tf.math.l2_normalize(encoder(xb), 1)
        positive = tf.reduce_sum(queries * keys, 1, keepdims=True)
        logits = tf.concat([positive, queries @ tf.transpose(queue)], 1) / 0.2
        labels = tf.zeros([tf.shape(xb)[0]], tf.int32)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    opt.apply_gradients(zip(tape.gradient(loss, encoder.trainable_variables), encoder.trainable_variables))
    for slow, fast in zip(momentum_encoder.trainable_variables, encoder.trainable_variables):
        slow.assign(0.9 * slow + 0.1 * fast)
    return loss, tf.concat([keys, queue], 0)[:16]


for step, xb in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(8)):
    loss, queue = train_step(queue, xb)
    print("step", step, f"loss {float(loss):.12g} queue {queue.shape} {float(tf.reduce_sum(queue)):.12g}")
variables = encoder.trainable_variables + momentum_encoder.trainable_variables
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
