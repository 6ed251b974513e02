"""a memory bank: each row's embedding is scattered into a tf.Variable, all are compared with the next batch"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(81)
x = np.random.normal(size=(35, 5))
ds = tf.data.Dataset.from_tensor_slices((np.arange(35), x)).batch(8)
encoder = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
bank = tf.Variable(tf.math.l2_normalize(np.random.normal(size=(35, 4)), 1), trainable=False)
opt = keras.optimizers.SGD(0.5)


@tf.function
def train_step(index, xb):
    with tf.GradientTape() as tape:
        z = tf.math.l2_normalize(encoder(xb), 1)
        logits = z @ tf.transpose(bank) / 0.3
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(index, logits))
    opt.apply_gradients(zip(tape.gradient(loss, encoder.trainable_variables), encoder.trainable_variables))
    old = tf.gather(bank, index)
    bank.scatter_nd_update(index[:, None], tf.math.l2_normalize(0.5 * old + 0.5 * z, 1))
    return loss


for step, (index, xb) in enumerate(ds):
    print("step", step, f"loss {float(train_step(index, xb)):.12g} bank {float(tf.reduce_sum(bank)):.12g}")
print(
    "weights",
    *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in [*encoder.trainable_variables, bank]],
)
