"""issue: only the four hardest rows of a batch are trained on (top_k of the losses)"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(6)
x = np.random.normal(size=(40, 6))
y = (x @ np.array([1.0, -2.0, 0.5, 0.0, 0.3, 1.0]))[:, None]
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.05, momentum=0.9)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        losses = tf.square(tf.squeeze(model(xb, training=True) - yb, 1))
        hardest = tf.math.top_k(losses, k=4).values
        loss = tf.reduce_mean(hardest)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for step, (xb, yb) in enumerate(ds):
    print("step", step, "hard loss", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
