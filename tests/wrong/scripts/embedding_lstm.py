"""placements: Embedding and an LSTM that runs as a while_loop, with a padding mask"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(36)
x = np.random.randint(1, 12, size=(33, 6))
for row, length in enumerate(np.random.randint(1, 7, 33)):
    x[row, length:] = 0
y = (x.sum(1) > 15).astype("float64")[:, None]
model = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        keras.layers.Embedding(12, 4, mask_zero=True),
        keras.layers.LSTM(5),
        keras.layers.Dense(1),
    ]
)
opt = keras.optimizers.Adam(0.02)
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function(reduce_retracing=True)
def train_step(tokens, labels):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(tokens, training=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for step, (tokens, labels) in enumerate(tf.data.Dataset.from_tensor_slices((x.astype("int32"), y)).batch(8)):
    print("step", step, "loss", f"{float(train_step(tokens, labels)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.trainable_variables])
