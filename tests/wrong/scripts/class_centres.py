"""issue: centre loss: the centres of the classes follow the batch's rows, assigned in the step"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(15)
x = np.random.normal(size=(35, 6))
y = np.random.randint(0, 3, 35)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
embed = keras.layers.Dense(4, activation="tanh")
embed.build((None, 6))
centres = tf.Variable(np.zeros((3, 4)), trainable=False)
opt = keras.optimizers.SGD(0.1)
for step, (xb, yb) in enumerate(ds):
    with tf.GradientTape() as tape:
        z = embed(xb)
        loss = tf.reduce_mean(tf.reduce_sum((z - tf.gather(centres, yb)) ** 2, 1)) - 0.1 * tf.reduce_mean(z**2)
    opt.apply(tape.gradient(loss, embed.trainable_variables), embed.trainable_variables)
    means = tf.math.unsorted_segment_mean(z, yb, num_segments=3)
    present = tf.math.bincount(tf.cast(yb, tf.int32), minlength=3) > 0
    centres.assign(tf.where(present[:, None], centres + 0.5 * (means - centres), centres))
    print("step", step, f"loss {float(loss):.12g} centres {float(tf.norm(centres)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in embed.trainable_variables])
print("centres", f"{float(tf.reduce_sum(centres)):.12g} {float(tf.norm(centres)):.12g}")
