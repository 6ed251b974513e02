"""a two-tower retrieval model: the other rows of the batch are the negatives"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(52)
users, items = np.random.randint(0, 10, 35), np.random.randint(0, 12, 35)
ds = tf.data.Dataset.from_tensor_slices((users, items)).batch(8)
user_tower, item_tower = keras.layers.Embedding(10, 4), keras.layers.Embedding(12, 4)
user_tower.build(), item_tower.build()
opt = keras.optimizers.Adagrad(0.5)
variables = user_tower.trainable_variables + item_tower.trainable_variables


@tf.function
def train_step(u, i):
    with tf.GradientTape() as tape:
        logits = tf.matmul(user_tower(u), item_tower(i), transpose_b=True)
        labels = tf.range(tf.shape(u)[0])
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for step, (u, i) in enumerate(ds):
    print("step", step, "loss", f"{float(train_step(u, i)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
