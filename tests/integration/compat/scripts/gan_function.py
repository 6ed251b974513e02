"""a GAN: two models, two optimizers, two tapes in one tf.function; noise and labels of the batch's size within"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
BATCH = 8
real = np.random.normal(3.0, 1.0, size=(40, 2)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(real).batch(BATCH)
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)])
discriminator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer, discriminator_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)


@tf.function
def train_step(images):
    noise = 0.5 * tf.ones((BATCH, 3))
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        fakes = generator(noise, training=True)
        on_real, on_fake = discriminator(images, training=True), discriminator(fakes, training=True)
        gen_loss = cross_entropy(tf.ones_like(on_fake), on_fake)
        labels = tf.concat([tf.ones((BATCH, 1)), tf.zeros((BATCH, 1))], axis=0)
        disc_loss = cross_entropy(labels, tf.concat([on_real, on_fake], axis=0))
    gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
    gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    discriminator_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables))
    return gen_loss, disc_loss


for epoch in range(3):
    for images in dataset:
        losses = train_step(images)
    print("epoch", epoch, *map(float, losses))
