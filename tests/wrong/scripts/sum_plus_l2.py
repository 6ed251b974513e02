"""issue: a summed loss plus an L2 penalty on the weights, in a tf.function, with Adam"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
x = np.random.normal(size=(35, 6))
y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        ce = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        penalty = tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables])
        loss = tf.reduce_sum(ce) + 0.1 * penalty
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for step, (features, labels) in enumerate(dataset):
    print("step", step, "loss", f"{float(train_step(features, labels)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
