"""a Dice loss over the whole batch: a ratio of sums, of a small segmentation CNN, eager"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(95)
x = np.random.normal(size=(25, 6, 6, 1))
y = (x > 0.5).astype("float64")
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
conv1, conv2 = keras.layers.Conv2D(3, 3, padding="same", activation="relu"), keras.layers.Conv2D(1, 1)
conv1.build((None, 6, 6, 1)), conv2.build((None, 6, 6, 3))
variables = conv1.trainable_variables + conv2.trainable_variables
opt = keras.optimizers.Adam(0.02)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        p = tf.sigmoid(conv2(conv1(xb)))
        overlap = tf.reduce_sum(p * yb)
        dice = (2 * overlap + 1) / (tf.reduce_sum(p) + tf.reduce_sum(yb) + 1)
        loss = 1 - dice
    opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
    union = tf.reduce_sum(tf.cast((p > 0.5) | (yb > 0.5), tf.int32))
    print("step", step, f"dice {float(dice):.12g} union {int(union)}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in variables])
