"""mixup: each row is mixed with its mirror in the batch (tf.reverse), by a factor from NumPy"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(67)
x = np.random.normal(size=(35, 5))
y = np.eye(3)[np.random.randint(0, 3, 35)]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
opt = keras.optimizers.Adam(0.01)
for step, (xb, yb) in enumerate(ds):
    lam = np.random.beta(0.4, 0.4)
    mixed_x = lam * xb + (1 - lam) * tf.reverse(xb, [0])
    mixed_y = lam * yb + (1 - lam) * yb[::-1]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(mixed_y, model(mixed_x, training=True)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, f"lambda {lam:.6f} loss {float(loss):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
