"""each row is paired with another row of the batch (gather by a fixed permutation), as for mutual information"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(53)
a = np.random.normal(size=(40, 3))
b = a + 0.5 * np.random.normal(size=(40, 3))
critic = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="elu"), keras.layers.Dense(1)])
opt = keras.optimizers.Adam(0.01)
shuffled = tf.constant([3, 0, 6, 1, 7, 2, 5, 4])


@tf.function
def train_step(ab, bb):
    with tf.GradientTape() as tape:
        joint = critic(tf.concat([ab, bb], 1))
        marginal = critic(tf.concat([ab, tf.gather(bb, shuffled)], 1))
        bound = tf.reduce_mean(joint) - tf.math.log(tf.reduce_mean(tf.exp(marginal)))
        loss = -bound
    opt.apply_gradients(zip(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables))
    return bound


for step, (ab, bb) in enumerate(tf.data.Dataset.from_tensor_slices((a, b)).batch(8)):
    print("step", step, "bound", f"{float(train_step(ab, bb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in critic.trainable_variables])
