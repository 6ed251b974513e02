"""a float32 CNN with BatchNormalization and a sum loss, eager"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(113)
x = np.random.rand(26, 8, 8, 1).astype("float32")
y = np.random.randint(0, 3, 26)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ]
)
opt = keras.optimizers.SGD(0.01)
for step, (images, labels) in enumerate(ds):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
        loss = tf.reduce_sum(losses)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print("step", step, f"loss {float(loss):.6g}")
print("weights", *[f"{float(tf.norm(w)):.6g}" for w in model.weights])
