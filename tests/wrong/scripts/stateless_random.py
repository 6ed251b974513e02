"""Stateless random numbers, augmentation seeded by step; tf.random.Generator split and reset."""

import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
x, y = np.random.randn(21, 8, 8, 1), np.random.randint(0, 2, 21)
model = keras.Sequential(
    [keras.layers.Conv2D(3, 3, activation="relu"), keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(2)]
)
opt = keras.optimizers.Adam(0.01)
rng = tf.random.Generator.from_seed(9)


def augment(xb, seed):
    xb = tf.image.stateless_random_flip_left_right(xb, seed)
    xb = xb + 0.1 * tf.random.stateless_normal(tf.shape(xb), seed + 1, dtype=tf.float64)
    xb = tf.image.stateless_random_brightness(xb, 0.2, seed)
    return tf.image.stateless_random_crop(xb, (tf.shape(xb)[0], 7, 7, 1), seed)


@tf.function
def step(xb, yb, seed):
    xb = augment(xb, seed)
    keep = tf.cast(tf.random.stateless_uniform((tf.shape(xb)[0],), seed, dtype=tf.float64) > 0.2, tf.float64)
    with tf.GradientTape() as tape:
        ce = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=yb, logits=model(xb))
        loss = tf.reduce_sum(ce * keep) / tf.reduce_sum(keep)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, tf.reduce_sum(keep)


for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).batch(6):
    seed = rng.make_seeds(2)[0]
    loss, kept = step(xb, yb, tf.cast(seed, tf.int32))
    noise = rng.uniform(xb.shape[:1], dtype=tf.float64)
    print(f"{float(loss):.12g} kept {int(kept)} noise {float(tf.reduce_sum(noise)):.12g} {rng.state.numpy().tolist()}")
print("weights", *(f"{float(tf.reduce_sum(v)):.12g}" for v in model.weights))
