"""Conv1D, GroupNormalization and depthwise convolution, with gradients centred by hand"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(63)
x = np.random.normal(size=(33, 8, 4))
y = np.random.normal(size=(33, 1))
model = keras.Sequential(
    [
        keras.Input((8, 4)),
        keras.layers.Conv1D(4, 3, padding="causal"),
        keras.layers.GroupNormalization(2),
        keras.layers.DepthwiseConv1D(3, activation="relu"),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dense(1),
    ]
)
opt = keras.optimizers.Nadam(0.01)


@tf.function
def train_step(xb, yb):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(xb, training=True) - yb) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    grads = [
        g - tf.reduce_mean(g, axis=list(range(len(g.shape) - 1)), keepdims=True) if len(g.shape) > 1 else g
        for g in grads
    ]
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for step, (xb, yb) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)):
    print("step", step, "loss", f"{float(train_step(xb, yb)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
