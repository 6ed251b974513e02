"""placements: a CNN with BatchNormalization in a tf.function, with its moving averages; a last batch of one row"""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(35)
x = np.random.normal(size=(25, 6, 6, 2))
y = np.random.randint(0, 3, 25)
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        keras.layers.Conv2D(4, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
opt = keras.optimizers.SGD(0.05, momentum=0.9)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(images, training=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for step, (images, labels) in enumerate(ds):
    print("step", step, "loss", f"{float(train_step(images, labels)):.12g}")
print("weights", *[f"{float(tf.reduce_sum(w)):.12g} {float(tf.norm(w)):.12g}" for w in model.weights])
